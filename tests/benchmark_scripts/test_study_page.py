"""The page of the study, from made-up outcomes: whoever wins is first, and cells are what a few lines give."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd
import pytest

from benchmarks import outcomes, pages, study_page, study_results
from benchmarks.outcomes import Outcomes
from benchmarks.pages import Table
from benchmarks.study import ALWAYS, MODELS, SLOWER
from benchmarks.study_prompts import KINDS
from benchmarks.study_results import Choice, Decision
from heta_lens.evaluation.statistics import Estimate

pytestmark = pytest.mark.slow
SIZES = {"dev": 4, "test": 9}
FEW = "capitals"  # has too few right answers on the second model
FAMILIES = ("squad_sentence", FEW, "languages", "tense", "pairs", "series", "code", "chat_user")
STRENGTH = {
    "gim": 4.0,
    "fast": 2.0,
    "attn_lrp": 0.5,
    "random": 0.0,
}  # how far the gold is above the rest; others have 1
IN_PATTERNS = {"gim": 1.8, "jacobian_scope": 9.0}


def made_up(model: str, family: str, split: str, number: int) -> Mapping[str, Any]:
    """Return an outcome in the stored format."""
    draw = np.random.default_rng(crc32(f"{model} {family} {split} {number}".encode()))
    if (model, family) == (MODELS[1], FEW) and number > 1:
        return {"commit": "0", "tokens": 9, "p": 0.1, "left out": "wrong"}
    if (model, family, number) == (MODELS[0], "tense", 0):
        return {"left out": "long"}
    kind = KINDS[family]
    count, shift = 8 + number % 3, 3 * (kind == "chats")  # tokens of a chat's template are not visible
    visible, gold = [*range(shift, shift + count)], 1 + number % 4
    drawn = [f"drawn {at}" for at in range(2)]
    others = ["runner-up", *["wrong form"] * (kind == "syntax"), *drawn]

    def scores(strength: float, size: int = count) -> list[float]:
        return [round(float(value), 7) for value in draw.normal(size=size) + strength * (np.arange(size) == gold)]

    def sizes(strength: float) -> list[float]:
        return [abs(value) for value in scores(strength)]

    parts: dict[str, Any] = {"gate": sizes(0), "squared gradient": sizes(1), "orig||masked": sizes(1)}
    parts |= {"masked||orig": sizes(1), "drop": scores(1), "drop, others": [scores(0) for _ in others]}
    parts |= {"squared gradient, others": [sizes(1) for _ in drawn]}
    parts |= {"squared gradient, contrast": {name: sizes(1) for name in others if name not in drawn}}
    effects = {how: scores(2, count - 1) for how in ("mean", "space", "delete")}
    effects |= {"resample": [scores(3, count - 1) for _ in range(2)]}
    strength = STRENGTH | (IN_PATTERNS if kind == "patterns" else {})
    found = {name: scores(strength.get(name, 1.0)) for name in [*ALWAYS, *(SLOWER if number % 8 == 0 else ())]}
    found["ifr"] = found["gim"]  # is as good
    if number % 5 == 0:
        del found["peering"]
    row = {"commit": "0", "tokens": shift + count, "p": 0.1 + number / 20, "template": f"{split} {number % 6}"}
    row |= {
        "seconds": dict.fromkeys(study_page.TIMED, 0.5),
        "visible": visible,
        "eligible": visible[:-1],
        "gold": [shift + gold],
        "copies": [shift + gold],
        "others": others,
    }
    if "heta" in found:
        parts["curvature"] = sizes(1)
        ends = {"gate": [0.5, 0.1, 1.0], "curvature": [1.0, 2.0, 30.0 - number], "information": [1.0, 4.0, 10.0]}
        row["first, last, sum"] = {**ends, "score": [2.0, 1.0, 8.0]}
    return row | {"parts": parts, "effects": effects if number % 4 == 0 else {}, "scores": found}


def taken_apart(row: dict[str, Any]) -> dict[str, Any]:
    """Take from a prompt what is measured on some prompts alone."""
    slower = {name: row["scores"].pop(name) for name in SLOWER if name in row.get("scores", ())}
    own = {"scores": slower, "effects": row.pop("effects", {}), "parts": {}}
    row |= {"effects": {}}
    if slower:
        own |= {"first, last, sum": row.pop("first, last, sum"), "parts": {"curvature": row["parts"].pop("curvature")}}
    return own


@pytest.fixture(scope="module", autouse=True)
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Store made-up outcomes in place of the measured ones, and draw few times."""
    folder = tmp_path_factory.mktemp("outcomes")
    modules = (study_results, study_page)
    cached = [one for module in modules for one in vars(module).values() if hasattr(one, "cache_clear")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outcomes, "KEPT", folder)
        patch.setattr(study_results, "RESAMPLED", 200)
        for model in MODELS:
            families = [name for name in FAMILIES if KINDS[name] != "chats" or "Instruct" in model]
            splits = ["dev", "test"] if model == MODELS[0] else ["test"]
            keys = [(family, split, at) for split in splits for at in range(SIZES[split]) for family in families]
            rows = {key: made_up(model, *key) for key in keys}
            slower = {key: own for key, row in rows.items() if (own := taken_apart(row))["effects"]}
            later = {key: slower.pop(key) for key in [*slower] if key[2] == 8}
            for part, own in {"": rows, "-slower": slower, "-heta": later}.items():
                stored = Outcomes(f"study-{model}{part}", folder / "measured")
                stored.measure(own, lambda *key, own=own: own[key])
                stored.pack()
        for one in cached:
            one.cache_clear()
        yield folder
    for one in cached:
        one.cache_clear()


def cells(table: Table) -> Any:
    return pd.DataFrame(table.rows, columns=[*table.columns]).set_index(table.columns[0])


def of_page(title: str, page: str = "results") -> Table:
    return next(table for table in study_page.tables()[page] if table.title == title)


def rows_of(model: str, split: str = "test") -> Any:
    """Return the prompts that count, without the family with too few."""
    keys = [(family, at) for family in FAMILIES if family != FEW for at in range(SIZES[split])]
    keys = [key for key in keys if KINDS[key[0]] != "chats" or model == MODELS[0]]
    rows = [
        {"family": family, "kind": KINDS[family], "number": at, **made_up(model, family, split, at)}
        for family, at in keys
    ]
    return pd.DataFrame([row for row in rows if "left out" not in row])


def evidence(row: Any, scores: Any, among: str = "eligible") -> tuple[float, float]:
    """Return the reciprocal rank of the only gold token less that of a random order, and 1 less the latter."""
    own, gold = np.array(scores)[: len(row[among])], row["gold"][0] - row["visible"][0]
    chance = np.mean([1 / rank for rank in range(1, len(own) + 1)])
    return 1 / (1 + (own > own[gold]).sum()) - chance, 1 - chance


def over_kinds(rows: Any, values: Any) -> Any:
    """Return the means of kinds over families over prompts; of values with what chance leaves, over its mean."""
    frame = pd.DataFrame([*values], index=pd.MultiIndex.from_frame(rows[["kind", "family"]]))
    means: Any = frame.groupby(["kind", "family"]).mean()
    return (means[0] / means[1] if 1 in means else means[0]).groupby("kind").mean()


def evidence_by_kind(model: str, setting: str, among: str = "eligible") -> Any:
    rows = rows_of(model)
    rows = rows[[setting in scores for scores in rows["scores"]]]
    return over_kinds(rows, (evidence(row, row["scores"][setting], among) for _, row in rows.iterrows()))


# ------------------------------------------------------------------------------------------------------------- evidence
@pytest.mark.parametrize("model", MODELS)
def test_evidence_is_that_of_the_outcomes_and_the_best_is_first(model: str) -> None:
    short = cells(of_page(f"{study_page.SHORT[model]}: evidence"))
    for setting in ("gim", "attn_lrp", "heta"):
        by_kind = evidence_by_kind(model, setting)
        assert short.loc[f"`{setting}`", "all kinds"] == f"{by_kind.mean():.2f}"
        assert [short.loc[f"`{setting}`", kind] for kind in by_kind.index] == [f"{value:.2f}" for value in by_kind]
    order = [name for name in short.index if name != "`copy`"]
    assert order[0] == "`gim`" and order.index("`fast`") < order.index("`attn_lrp`") < order.index("`random`")
    values = short["all kinds"].replace("–", "nan").astype(float).dropna()
    assert values.is_monotonic_decreasing and short.index.is_unique


def test_settings_are_on_the_prompts_that_have_them() -> None:
    every = cells(of_page("SmolLM2, every setting: evidence", "real"))
    rows = rows_of(MODELS[0])
    assert every.loc["`gim`", "prompts"] == f"{len(rows)}"
    assert every.loc["`peering`", "prompts"] == f"{(rows['number'] % 5 > 0).sum()}"
    assert every.loc["`heta`", "prompts"] == f"{(rows['number'] % 8 == 0).sum()}"
    wrong = every.loc["`Δ, wrong form`"]
    assert wrong["all kinds"] == wrong["facts"] == "–" != wrong["syntax"] and wrong["prompts"] == "8"
    assert [*every.index][-1] in ("`Δ, wrong form`", "`√(G·|Δ|), wrong form`", "`√(G·I), wrong form`")
    value = evidence_by_kind(MODELS[0], "peering").mean()
    assert every.loc["`peering`", "all kinds"].startswith(f"{value:.2f} [")


def test_the_last_token_counts_among_visible_tokens_alone() -> None:
    rows = rows_of(MODELS[1])
    last = over_kinds(
        rows, ([np.argmax(row["scores"]["attn_lrp"]) == len(row["visible"]) - 1] for _, row in rows.iterrows())
    )
    visible = evidence_by_kind(MODELS[1], "attn_lrp", "visible")
    every = cells(of_page("Gemma, every setting: evidence among visible tokens", "real")).loc["`attn_lrp`"]
    short = cells(of_page("Gemma: evidence")).loc["`attn_lrp`"]
    assert short["last on top"] == f"{last.mean():.2f}" != "0.00"
    assert short["visible tokens"] == f"{visible.mean():.2f}" and every["facts"].startswith(f"{visible['facts']:.2f} [")
    assert abs(visible["facts"] - evidence_by_kind(MODELS[1], "attn_lrp")["facts"]) > 0.01


# ------------------------------------------------------------------------------------------------------------- decision
def test_the_strong_setting_leads_and_is_confirmed() -> None:
    table = of_page("Regret on dev, all settings")
    assert table.note.startswith("`gim` leads; the champion is `gim`.")
    regrets = [float(cell) for cell in cells(table)["largest regret"]]
    assert regrets == sorted(regrets) and cells(table).index[0] == "`gim`"
    every = of_page("Regret on dev, all settings", "real")
    assert "`peering`" in every.note and every.note.startswith("`gim` leads")
    assert table.rows == every.rows[: study_page.FIRST] and not {"`random`", "`peering`"} & {*cells(every).index}
    tests = cells(of_page("Confirmed?"))
    every = tests[tests["champion of"] == "all settings"]
    assert [*every["confirmed"]] == ["yes"] * 8
    apart = evidence_by_kind(MODELS[1], "gim").mean() - evidence_by_kind(MODELS[1], "attn_lrp").mean()
    shown = every[every["model"] == "Gemma"].loc["`gim` − `attn_lrp`", "difference"]
    assert shown.startswith(f"{apart:+.2f} [") and study_results.recommended() == "gim"


def test_today_s_setting_stays_if_one_test_fails() -> None:
    choice = Choice("x", ("x",), "x", (), study_page.found(MODELS[0])["gim"])
    one = study_results.confirmation("gim", ["fast"])[0]
    passed, failed = (replace(one, p=p) for p in (0.01, 0.06))
    assert Decision(choice, [passed, passed], "y").recommended == "x"
    assert Decision(choice, [passed, failed], "y").recommended == "y"


def test_a_kind_gets_another_setting_where_that_is_better_on_both_models() -> None:
    table = cells(of_page("By kind"))
    assert table.loc["patterns", "recommended"] == "`jacobian_scope`"
    assert table.loc["patterns", "best on dev"] == "`jacobian_scope`"
    assert {*table.drop("patterns")["recommended"]} == {"`gim`"}
    difference = evidence_by_kind(MODELS[0], "jacobian_scope") - evidence_by_kind(MODELS[0], "gim")
    own = "its evidence − `gim`'s, "
    assert table.loc["patterns", f"{own}SmolLM2"].startswith(f"{difference['patterns']:+.2f} [")
    assert table.loc["chats", f"{own}Gemma"] == "–"


@pytest.mark.parametrize(("lows", "expected"), [((0.1, 0.1), "x"), ((0.1, 0.0), "gim"), ((0.1,), "x")])
def test_a_setting_is_recommended_for_a_kind_if_it_is_better_on_every_model(
    lows: tuple[float, ...], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart = {model: Estimate(0.2, low, 0.3, 9, 9) for model, low in zip(MODELS, lows, strict=False)}
    monkeypatch.setattr(study_results, "best_of", lambda _: ("x", apart))
    assert study_results.recommended_for("text") == expected


def test_a_family_with_too_few_right_answers_is_named_and_left_out_on_both_models() -> None:
    assert study_results.too_few() == (FEW,)
    assert not any(family == FEW for model in MODELS for family, _ in study_results.prompts(model, "test"))
    assert not any(family == FEW for family, _ in study_results.prompts(MODELS[0], "dev"))
    table = of_page("Prompts", "real")
    assert f"`{FEW}`" in table.note
    columns = ["tried", "right", "wrong", "long", "error", "with interventions", "with `heta`"]
    few = cells(table).loc[FEW, [f"Gemma test: {column}" for column in columns]]
    assert [*few] == ["9", "2", "7", "0", "0", "1", "1"]
    assert [*cells(table).loc["tense", [f"SmolLM2 test: {column}" for column in columns]]] == [*"9801021"]


# ------------------------------------------------------------------------------------------- signs, agreement and masks
def rho(one: Any, other: Any) -> float:
    return pd.Series(np.abs(one)).corr(pd.Series(np.abs(other)), method="spearman")


def with_effects(model: str) -> Any:
    rows = rows_of(model)
    return rows[[bool(effects) for effects in rows["effects"]]]


def test_signs_are_those_of_the_tokens_that_move_the_answer() -> None:
    rows, shares = with_effects(MODELS[0]), list[list[list[float]]]()
    for _, row in rows.iterrows():
        moves = np.array(row["effects"]["delete"])
        far, own = np.abs(moves) >= 0.1, np.array(row["scores"]["attn_lrp"])[:-1]
        shares.append([[((own > 0) == (moves > 0))[far].mean()], [(moves > 0)[far].mean()]])
    own, always = (over_kinds(rows, (share[at] for share in shares)).mean() for at in range(2))
    table, above = cells(of_page("Signs")), cells(of_page("Signs above every token for", "real"))
    assert table.loc["`attn_lrp`", "SmolLM2, delete"] == f"{own:.2f}"
    assert table.loc["every token *for*", "SmolLM2, delete"] == f"{always:.2f}"
    assert above.loc["`attn_lrp`", "SmolLM2, delete"].startswith(f"{own - always:+.2f} [")
    assert (
        table.loc["`leave_one_out delete`", "SmolLM2, delete"] == "–" != table.loc["`leave_one_out`", "SmolLM2, delete"]
    )
    assert table.loc["`attn_lrp`", "prompts"] == f"{len(rows)} and {len(with_effects(MODELS[1]))}"


def test_agreement_by_resampling_is_over_its_ceiling() -> None:
    rows = with_effects(MODELS[1])
    halves = [rho(*row["effects"]["resample"]) for _, row in rows.iterrows()]
    ceiling = np.mean([np.sqrt(max(0, 2 * half / (1 + half))) for half in halves])
    own = (
        [rho(row["scores"]["gim"][:-1], np.mean(row["effects"]["resample"], 0)) / ceiling] for _, row in rows.iterrows()
    )
    table = of_page("Agreement")
    assert cells(table).loc["`gim`", "Gemma, resample"] == f"{over_kinds(rows, own).mean():.2f}"
    assert f"{ceiling:.2f} on Gemma" in table.note


def test_masks_are_compared_on_the_prompts_that_have_all() -> None:
    rows = with_effects(MODELS[0])
    drops = [(row["parts"]["drop"][:-1], row["effects"]["delete"]) for _, row in rows.iterrows()]
    alike = over_kinds(rows, ([rho(*both)] for both in drops)).mean()
    table = cells(of_page("SmolLM2: masks"))
    assert (
        table.loc["`leave_one_out`", "ρ with delete"]
        == table.loc["`leave_one_out delete`", "ρ with zero"]
        == f"{alike:.2f}"
    )
    assert table.loc["`leave_one_out delete`", "ρ with delete"] == "–"
    own = over_kinds(rows, (evidence(row, row["parts"]["drop"]) for _, row in rows.iterrows())).mean()
    assert table.loc["`leave_one_out`", "evidence"].startswith(f"{own:.2f} [")
    values = [float(cell.split()[0]) for cell in table["evidence"]]
    assert values == sorted(values, reverse=True)


# ------------------------------------------------------------------------------------------ HETA, figures, prose, pages
def test_shares_of_the_parts_of_heta() -> None:
    table = cells(of_page("Shares of HETA's parts"))
    assert [*table["Gemma"]][:3] == ["0.50 [0.50, 0.50]", "0.25 [0.25, 0.25]", "0.40 [0.40, 0.40]"]
    least, most = 22 / 32, 30 / 40  # of prompts 8 and 0
    assert (
        table.loc["curvature in curvature + information", "Gemma"]
        == f"{(least + most) / 2:.2f} [{least:.2f}, {most:.2f}]"
    )
    assert table.loc["ρ of p with the curvature's sum", "Gemma"] == "-1.00"
    with_heta = [rows_of(MODELS[0], split) for split in SIZES]
    assert table.loc["prompts", "SmolLM2"] == str(sum((rows["number"] % 8 == 0).sum() for rows in with_heta))


def test_a_step_from_heta_is_a_paired_difference() -> None:
    rows = rows_of(MODELS[0])
    gated, plain = (
        over_kinds(
            rows,
            (
                evidence(row, np.array(row["parts"]["orig||masked"]) * (row["parts"]["gate"] if gate else 1))
                for _, row in rows.iterrows()
            ),
        ).mean()
        for gate in (True, False)
    )
    assert cells(of_page("Steps from HETA")).loc["`M · I` − `I`", "SmolLM2"].startswith(f"{gated - plain:+.2f} [")


def test_a_point_of_the_figure_is_a_difference_to_the_recommended_setting() -> None:
    figure = study_page.dots(["attn_lrp", "jacobian_scope"])
    panels = {axis.get_title(): axis for axis in figure.axes if axis.axison}
    assert [*panels] == ["all kinds", *dict.fromkeys(KINDS.values())]
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["attn_lrp", "jacobian_scope"]
    for place, model in enumerate(MODELS):
        difference = evidence_by_kind(model, "attn_lrp") - evidence_by_kind(model, "gim")
        point, *_ = panels["facts"].containers[place]
        assert point.get_xdata()[0] == pytest.approx(difference["facts"])
    assert len(panels["chats"].containers[0][0].get_xdata()) == 2 and not len(
        panels["chats"].containers[1][0].get_xdata()
    )


def test_prose_may_quote_evidence_differences_tests_and_shares() -> None:
    phrases = study_page.phrases()
    value = evidence_by_kind(MODELS[1], "attn_lrp")["facts"]
    assert f"`attn_lrp` {value:.2f} in facts on Gemma" in phrases
    assert "gate on the first token is 0.50 [0.50, 0.50] on Gemma" in phrases
    assert "56 right answers to 63 prompts on Gemma" in phrases and "`√(G·|Δ|)` 1.0 s on Gemma" not in phrases
    assert "`careful` 1.0 s on Gemma" in phrases and "0 core-hours" in phrases
    rows = rows_of(MODELS[1])
    templates = len(rows[["family", "template"]].drop_duplicates())
    assert f"{len(rows)} prompts in {templates} templates of {rows['family'].nunique()} families on Gemma" in phrases
    apart = evidence_by_kind(MODELS[0], "gim").mean() - evidence_by_kind(MODELS[0], "fast").mean()
    assert any(re.match(rf"`gim` − `fast` is \{apart:+.2f} .* on SmolLM2 \(p = ", phrase) for phrase in phrases)
    assert not any("nan" in phrase for phrase in phrases)


def test_one_command_writes_pages_csv_files_and_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(study_page, "ROOT", tmp_path)
    monkeypatch.setattr(pages, "CSV", tmp_path / "tables")
    monkeypatch.setattr(pages, "PAGES", {name: tmp_path / f"{name}.md" for name in ("results", "real")})
    study_page.write()
    for name, tables in study_page.tables().items():
        text = (tmp_path / f"{name}.md").read_text(encoding="utf-8")
        assert all(f"## {table.title}\n\n{table.text}\n" in text for table in tables) and pages.from_csv(name) == text
    assert {path.name for path in (tmp_path / "docs").iterdir()} == {"differences.webp", "differences_dark.webp"}


def test_the_documented_lines_recompute_a_cell(kept: Path) -> None:
    protocol = Path(study_page.__file__).with_name("STUDY.md").read_text(encoding="utf-8")
    code = protocol.split("## The outcomes")[1].split("```python\n")[1].split("```")[0]
    known: dict[str, Any] = {}
    exec(code.replace("benchmarks/tables", str(kept)), known)
    by_kind = evidence_by_kind(MODELS[1], "gim")
    assert known["syntax"] == pytest.approx(by_kind["syntax"])
