(() => {
  const root = isolate();
  if (!root) return;
  const find = name => root.querySelector(name);
  const data = JSON.parse(find("script[type]").textContent);

  // ------------------------------------------------------------------------------------------- numbers and elements
  const bytes = text => Uint8Array.from(atob(text), letter => letter.charCodeAt(0)).buffer;
  const floats = text => Array.from(new Float32Array(bytes(text)));
  const counts = text => Array.from(new Uint16Array(bytes(text)));
  const total = values => values.reduce((sum, value) => sum + value, 0);
  const raised = power => [...String(power)].map(letter => letter === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[letter]).join("");
  /** A number with as many decimals as the largest in its column has room for: three digits of that one. */
  const number = (value, most = Math.abs(value)) => {
    if (!value || !most) return "0";
    const power = Math.floor(Math.log10(most)), far = power < -3 || power > 5;
    const places = far ? 2 : Math.min(4, Math.max(0, 2 - power)), shown = far ? value / 10 ** power : value, least = 10 ** -places;
    const digits = Math.abs(shown) < least / 2 ? (shown < 0 ? `>−${least}` : `<${least}`) : shown.toFixed(places).replace("-", "−");
    return far ? `${digits} × 10${raised(power)}` : digits;
  };
  /** A number alone, without zeros at its end. */
  const round = (value, most) => number(value, most).replace(/(\.\d*?)0+(?=$| )/, "$1").replace(/\.(?=$| )/, "");
  const moved = places => places > 0 ? `↓${places}` : places < 0 ? `↑${-places}` : "=";
  const select = (label, names, chosen, change) => {
    const list = make("select");
    names.forEach(([value, name]) => list.append(new Option(name, value, false, value === chosen)));
    list.onchange = () => change(list.value);
    find(".bar").append(make("label", label, {}, list));
    return list;
  };

  // -------------------------------------------------------------------------------------------------------- the data
  const original = find(".strip"), letters = node => node?.nodeType === 3 ? node.data.replace(/\n/g, "") : "";
  const texts = [...original.querySelectorAll("b")].map(chip => letters(chip.previousSibling) + chip.textContent);
  const positions = data.positions ?? Array.from({ length: data.count }, (_, row) => row);
  /** Chips are tokens as they are shown: one may stand for several rows of the data, which write one character. */
  const chipOf = [], rowsOf = texts.map(() => []);
  (data.cells ? counts(data.cells) : texts.map(() => 1)).forEach((rows, chip) => {
    while (rows--) rowsOf[chip].push(chipOf.push(chip) - 1);
  });
  const views = data.values.map(view => ({ ...view, values: floats(view.values), errors: view.errors && floats(view.errors) }));
  const units = { tokens: [...chipOf] }, together = data.together ?? [];
  together.forEach(([start, stop]) => units.tokens.fill(chipOf[start], start, stop));  // a search left these together
  for (const name in data.units) units[name] = counts(data.units[name].of);
  const kinds = { "first token": new Set(data.first), [data.hidden_name]: new Set(data.hidden) };
  /** Of a long text, the piece of every row: a sentence, or a part of a long one. */
  const pieceOf = data.pieces && counts(data.pieces), measured = data.measured && new Set(data.measured);
  const evidence = new Set(data.marked), hiddenKinds = new Set(data.special ? [] : [data.hidden_name]);
  /** What is shown: ``current`` is the chip that is pointed at, ``pick`` the chip whose targets or sources are. */
  const state = {
    view: data.compare ? "all" : 0, unit: units[data.unit] ? data.unit : "tokens", current: null, pinned: false, pick: null, feeds: false, other: null,
    sorted: null, down: true, rows: 0, results: [], beside: [], members: [], folded: Boolean(data.pieces), opened: new Set(),
  };

  /** Of a span: for every target the scores of what came before it. */
  const unpacked = packed => {
    const values = floats(packed), rows = new Map();
    let from = 0;
    for (const target of data.matrix.targets) rows.set(target, values.slice(from, from += target));
    return rows;
  };
  const once = (known, name, packed) => known[name] ??= unpacked(packed);
  const matrix = data.matrix ? unpacked(data.matrix.scores) : new Map(), parts = {}, errorsOf = {}, targets = [...matrix.keys()];
  const part = name => once(parts, name, data.matrix.parts[name]);
  const targetsOf = chip => rowsOf[chip].filter(row => matrix.has(row));
  const isPart = view => Object.hasOwn(data.matrix?.parts ?? {}, view.name);
  /** Of the picked token, what a view shows: the scores, or the part of them that it is of. */
  const picked = view => {
    const rows = rowsOf[state.pick], quoted = `“${texts[state.pick].trim()}”`, of = isPart(view) ? part(view.name) : matrix, name = isPart(view) ? view.name : "scores";
    const { what } = isPart(view) ? view : {};
    if (state.feeds) return { what, name: `influence of ${quoted}${isPart(view) ? `, ${name}` : ""}`, values: chipOf.map((_, at) => total(rows.map(row => of.get(at)?.[row] ?? 0))) };
    const own = targetsOf(state.pick), errors = own.length === 1 && of === matrix && data.matrix.errors ? once(errorsOf, "scores", data.matrix.errors).get(own[0]) : null;
    return { what, errors, name: `${name} for ${quoted}`, values: chipOf.map((_, at) => total(own.map(target => of.get(target)[at] ?? 0))) };
  };
  const shown = () => state.view === "all" ? views : [state.pick === null ? views[state.view] : picked(views[state.view])];
  /** What is not in the colours, but said beside them. */
  const others = () => {
    const own = views[state.view];
    if (state.view === "all") return [];
    if (state.pick === null) return views.filter(view => view !== own);
    const scores = views.find(view => !isPart(view));
    return [scores, ...views.filter(isPart)].filter(view => isPart(own) ? view !== own : isPart(view)).map(picked);
  };
  const unitsName = () => state.unit === "tokens" && together.length ? "tokens and spans" : state.unit;
  const hidden = row => [...hiddenKinds].some(kind => kinds[kind].has(row));
  const chipsOf = unit => [...new Set(state.members[unit].map(row => chipOf[row]))];
  const unitText = unit => chipsOf(unit).map(chip => texts[chip]).join("");
  const unitName = unit => {
    const text = unitText(unit), role = data.units[state.unit]?.roles?.[unit];
    if (role) return role === "template" ? "template" : clip(`${role}: ${text.trim()}`);
    if (state.unit === "tokens") return `“${clip(text)}”${state.members[unit].includes(data.last) ? " (last)" : ""}`;
    return `“${clip(text.trim())}”`;
  };
  /** The same to read in a sentence: without spaces inside the quotes. */
  const bareName = unit => unitName(unit).replace(/^“ +(?=.)/, "“").replace(" (last)", "");

  const height = data.by_size ? Math.abs : number => number;
  /** Where colour is deepest: the largest size, or twice the second where the largest holds most (see `scales.deepest`). */
  const deepest = values => {
    const sizes = values.map(Math.abs).sort((a, b) => b - a), [largest = 0, second] = sizes;
    return (second && largest > total(sizes) * 2 / 3 ? 2 * second : largest) || 1;
  };
  /** Where a first word that holds more than a quarter is an attention sink, the scale is that of all others. */
  const sinkOf = values => data.first.find(row => Math.abs(values[row]) > total(values.map(Math.abs)) / 4);
  /** A view added up over tokens, words, sentences or messages; what is hidden has no rank, and no part in the scale. */
  const summed = view => {
    const of = units[state.unit], [sums, visible] = [0, false].map(empty => Array(state.members.length).fill(empty));
    const whole = total(view.values.map(Math.abs)) || 1;
    let hiddenSize = 0;
    view.values.forEach((value, row) => {
      sums[of[row]] += value;
      if (hidden(row)) hiddenSize += Math.abs(value);
      else visible[of[row]] = true;
    });
    const order = sums.map((_, unit) => unit).filter(unit => visible[unit]).sort((a, b) => height(sums[b]) - height(sums[a]) || a - b);
    const ranks = Object.fromEntries(order.map((unit, place) => [unit, place + 1]));
    const depth = unit => state.unit === "tokens" ? sums[unit] / chipsOf(unit).length : sums[unit];
    const share = unit => Math.abs(sums[unit]) / whole, first = of[sinkOf(view.values)];
    const sunk = ["tokens", "words"].includes(state.unit) && visible[first] && order.length > 1 ? first : null, scaled = order.filter(unit => unit !== sunk);
    const most = Math.max(...order.map(unit => Math.abs(sums[unit])), 0), signed = order.some(unit => sums[unit] < 0);
    return { view, sums, order, scaled, sunk, ranks, share, most, signed, depth, deepest: state.unit === "messages" ? most || 1 : deepest(scaled.map(depth)), hidden: hiddenSize / whole };
  };
  const errorOf = (result, unit) => {
    const [row, second] = state.unit === "tokens" ? state.members[unit] : [];
    return result.view.errors && second === undefined && result.view.errors[row] >= 0 ? result.view.errors[row] : null;
  };
  const withError = (result, unit, write = number) => {
    const error = errorOf(result, unit);
    return write(result.sums[unit], result.most) + (error === null ? "" : ` ± ${write(error, result.most)}`);
  };
  const bySize = result => [...result.order].sort((a, b) => Math.abs(result.sums[b]) - Math.abs(result.sums[a]));

  // ------------------------------------------------------------------------------------------------------ the tokens
  const strips = [];
  const lane = () => {
    const element = original.cloneNode(true), strip = make("div", "", { class: "lane" }, make("div", "", { class: "name" }), element);
    element.tabIndex = 0;
    strip.chips = [...element.querySelectorAll("b")];
    strip.pieces = pieceOf ? wrapped(strip) : [];
    strip.quiet = quietChips(strip.chips);
    const chip = event => strip.chips.indexOf(event.target.closest("b"));
    element.onmouseover = event => state.pinned || point(chip(event));
    element.onmouseleave = () => state.pinned || point(-1);
    element.onclick = event => pin(chip(event));
    element.onkeydown = event => key(event, strip.chips);
    return strip;
  };
  /** Have a lane for each result; those that are there stay, since a long text takes a while to build. */
  const rebuild = () => {
    strips.splice(state.results.length).forEach(strip => strip.remove());
    while (strips.length < state.results.length) strips.push(lane());
    original.remove();
    find(".text").prepend(...[minimap].filter(Boolean), ...strips);
  };
  /** For each run of hidden tokens a small chip, which says what they hold; in a chat, beside the message's role. */
  const quietChips = chips => {
    const found = [];
    chips.forEach((chip, at) => {
      if (!chip.matches(".g")) return;
      const body = chip.closest(".body"), role = body.previousElementSibling;
      if (at && found.length && chips[at - 1].matches(".g") && chips[at - 1].closest(".body") === body) return found[found.length - 1].own.push(at);
      const element = make("span", "", { class: "quiet" });
      element.onclick = () => show(data.hidden_name);
      if (role && chip === body.querySelector("b")) role.append(element);
      else chip.before(element);
      found.push({ element, own: [at] });
    });
    return found;
  };
  const paintQuiet = ({ element, own }, { view }) => {
    const rows = own.flatMap(chip => rowsOf[chip]), whole = total(view.values.map(Math.abs)) || 1;
    const written = own.map(chip => texts[chip]).join(""), name = own.length === 1 ? texts[own[0]].trim() : data.hidden_name.replace("the chat ", "");
    element.hidden = !hidden(rows[0]);
    element.classList.toggle("last", rows.includes(data.last));
    element.replaceChildren(clip(name, 24), make("small", percent(total(rows.map(row => Math.abs(view.values[row]))) / whole)));
    element.title = `${own.length === 1 ? "" : `${own.length} tokens, `}${written}: hidden, click to show`;
  };
  // -------------------------------------------------------------------------------------------------- long texts
  /** Wrap what belongs to a piece in an element of its own, and return these in the order of the text. */
  const wrapped = strip => {
    const found = [];
    let at = 0;
    strip.querySelectorAll(".body").forEach(body => {
      const waiting = [];
      let own = null;
      [...body.childNodes].forEach(node => {
        if (node.nodeName === "BR") own.element.append(node);
        else if (node.nodeName !== "B") waiting.push(node);
        else {
          const piece = pieceOf[rowsOf[at][0]];
          if (own?.piece !== piece) {
            own = { piece, element: make("span"), share: make("small", "", { class: "share" }), chips: [] };
            (waiting[0] ?? node).before(own.share, own.element);
            found.push(own);
          }
          own.element.append(...waiting.splice(0), node);
          own.chips.push(at++);
        }
      });
    });
    return found;
  };
  const MOST = 12, ENOUGH = .8, FEW = 20;
  /** Show the pieces that hold most of what is shown, evidence, the end, and what was opened; fold what is between. */
  const fold = (strip, { view }) => {
    const sizes = [], open = new Set([pieceOf[pieceOf.length - 1], ...[...evidence].map(row => pieceOf[row]), ...state.opened]);
    view.values.forEach((value, row) => { sizes[pieceOf[row]] = (sizes[pieceOf[row]] ?? 0) + (hidden(row) ? 0 : Math.abs(value)); });
    const whole = total(view.values.map(Math.abs)) || 1, most = total(sizes);
    let held = 0;
    sizes.map((_, piece) => piece).sort((a, b) => sizes[b] - sizes[a]).slice(0, MOST).forEach(piece => {
      if (held < ENOUGH * most) open.add(piece);
      held += sizes[piece];
    });
    strip.querySelectorAll(".fold").forEach(button => button.remove());
    const runs = [];
    strip.pieces.forEach(own => {
      const body = own.element.parentElement, closed = state.folded && !open.has(own.piece), run = runs[runs.length - 1];
      own.element.hidden = false;
      own.share.textContent = !closed && sizes[own.piece] / whole >= .01 ? percent(sizes[own.piece] / whole) : "";
      if (run?.body === body && run.closed === closed) run.all.push(own);
      else runs.push({ body, closed, all: [own] });
    });
    runs.forEach(({ closed, all }) => {
      const tokens = total(all.map(({ chips }) => chips.length)), size = total(all.map(({ piece }) => sizes[piece]));
      if (!closed || tokens < FEW) return;
      const button = make("button", `… ${tokens.toLocaleString("en")} tokens, ${percent(size / whole)}`, { type: "button", class: "fold" });
      button.onclick = () => { all.forEach(({ piece }) => state.opened.add(piece)); refresh(); };
      all[0].share.before(button);
      all.forEach(({ element }) => { element.hidden = true; });
    });
  };
  /** A narrow strip of the whole text: the darker, the more score lies there; a click opens the place. */
  const minimap = pieceOf && make("canvas", "", { class: "minimap", "aria-hidden": "true", title: "where the score lies in the text; click to go there" });
  const WIDTH = 800, HEIGHT = 14;
  const drawMap = ({ view }) => {
    Object.assign(minimap, { width: WIDTH, height: HEIGHT });
    const context = minimap.getContext("2d"), sums = Array(WIDTH).fill(0), at = row => Math.floor(row / view.values.length * WIDTH);
    view.values.forEach((value, row) => { if (!hidden(row)) sums[at(row)] += value; });
    const end = deepest(sums), style = getComputedStyle(find(".text"));
    sums.forEach((sum, column) => {
      context.fillStyle = `rgb(${style.getPropertyValue(sum < 0 ? "--neg" : "--pos")} / ${Math.min(1, Math.abs(sum) / end)})`;
      context.fillRect(column, 0, Math.ceil(WIDTH / view.values.length), HEIGHT);
    });
    minimap.onclick = event => {
      const row = Math.min(chipOf.length - 1, Math.floor(event.offsetX / minimap.clientWidth * chipOf.length));
      state.opened.add(pieceOf[row]);
      refresh();
      strips[0].chips[chipOf[row]].scrollIntoView({ block: "center" });
    };
  };
  const refresh = () => {
    state.members = [];
    units[state.unit].forEach((unit, row) => (state.members[unit] ??= []).push(row));
    state.members = Array.from(state.members, rows => rows ?? []);
    state.results = shown().map(summed);
    state.beside = others().map(summed);
    if (strips.length !== state.results.length) rebuild();
    strips.forEach((strip, at) => {
      const result = state.results[at], [name, element] = strip.children;
      element.setAttribute("aria-label", `tokens, coloured by ${result.view.name}; arrow keys move, Enter pins`);
      if (pieceOf) fold(strip, result);
      paint(strip, result);
      strip.quiet.forEach(quiet => paintQuiet(quiet, result));
      strip.querySelectorAll(".role").forEach(head => share(head, result));
      name.hidden = state.view !== "all";
      name.replaceChildren(make("strong", result.view.name), make("span", [result.view.what, `deepest at ${round(result.deepest)}`, ...beyond(result)].filter(Boolean).join(" · ")));
    });
    find(".scales").replaceChildren(...legend());
    if (pieceOf) drawMap(state.results[0]);
    table();
    marked = null;
    mark();
  };
  const paint = (strip, result) => strip.chips.forEach((chip, place) => {
    if (chip.parentElement.hidden) return;  // folded
    const [row] = rowsOf[place], value = result.depth(units[state.unit][row]), off = hidden(row);
    chip.style.setProperty("--a", off ? 0 : Math.min(1, Math.abs(value) / result.deepest).toFixed(3));
    chip.classList.toggle("n", value < 0);
    chip.classList.toggle("off", off);
    chip.classList.toggle("t", targetsOf(place).length > 0);
    chip.classList.toggle("m", Boolean(measured) && !off && !measured.has(row));
    chip.classList.toggle("pick", state.pick === place);
    chip.classList.toggle("last", rowsOf[place].includes(data.last));
    for (let end = chip.nextSibling; end?.nodeName === "BR"; end = end.nextSibling) end.hidden = off && chip.classList.contains("g");
  });
  /** Of a message: the size of its sum, of all tokens in percent, and of those that are shown as a bar. */
  const share = (head, result) => {
    const [, bar, text] = head.children, { values } = result.view;
    const own = values.filter((_, row) => units.messages[row] === +head.parentElement.dataset.message);
    const held = Math.abs(total(own)) / (total(values.map(Math.abs)) || 1);
    bar.style.setProperty("--w", Math.min(1, held / (1 - result.hidden || 1)));
    bar.classList.toggle("n", total(own) < 0);
    text.textContent = own.some(value => value) ? percent(held) : "";
  };
  const over = result => result.scaled.filter(unit => Math.abs(result.depth(unit)) > result.deepest * 1.0001);
  const beyond = result => [
    ...over(result).map(unit => `${bareName(unit)} is ${round(result.depth(unit))}${result.depth(unit) === result.sums[unit] ? "" : " a token"} (${percent(result.share(unit))}), beyond the scale`),
    ...result.sunk === null ? [] : [`the scale leaves out ${bareName(result.sunk)}, which begins the text (${percent(result.share(result.sunk))})`],
  ];
  /** One scale: of all strips, if several are shown, each with a deepest colour of its own. */
  const legend = () => {
    const [first] = state.results, several = state.results.length > 1, signed = state.results.some(result => result.signed);
    const [below, above] = data.signs, against = !several && signed && !first.order.some(unit => first.sums[unit] > 0);
    const end = round(first.deepest), ramp = make("span", "", { class: `ramp${against ? " against" : signed ? " both" : ""}` });
    const open = sign => over(first).some(unit => first.sums[unit] * sign > 0) ? (sign > 0 ? "≥ " : "≤ ") : "";
    const line = make("div", "", { class: "scale" }, make("strong", several ? "scores" : first.view.name));
    const [low, high] = several
      ? [signed ? below || "below 0" : "0", signed ? `${above || "above 0"}${data.by_size ? ", or no direction" : ""}` : "deepest"]
      : [signed ? `${below} ${open(-1)}−${end}`.trim() : "0", against ? "0" : `${open(1)}${end}${signed ? ` ${above}` : ""}`.trim()];
    line.append(make("span", "", { class: "key" }, make("span", low), ramp, make("span", high)));
    const notes = several
      ? ["each on a scale of its own: the deepest colour is the largest score, or twice the second largest where one token holds two thirds"]
      : [first.view.what, ...beyond(first), over(first).length && "the scale ends at twice the second largest",
        hiddenKinds.has("first token") && `hidden: ${percent(first.hidden)}`, measured && "dotted: not measured alone"].filter(Boolean);
    if (notes.length) line.append(make("small", notes.join(" · ")));
    return [line];
  };

  // ----------------------------------------------------------------------------------------------- pointing, pinning
  const point = (chip, other = null) => {
    state.current = chip < 0 ? null : chip;
    state.other = other;
    mark();
  };
  const pin = chip => {
    if (chip < 0) return;
    if (matrix.size && (state.feeds || targetsOf(chip).length)) {
      if (state.view === "all") viewList.value = state.view = 0;
      state.pick = state.pick === chip ? null : chip;
      refresh();
    }
    state.pinned = !(state.pinned && state.current === chip);
    point(chip);
    tell();
  };
  const release = () => {
    state.pinned = false;
    if (state.pick !== null) {
      state.pick = null;
      refresh();
    }
    point(-1);
    tell();
  };
  /** Whoever shows this view may ask more about the token that is pinned, or the word or sentence that it is part of. */
  const tell = () => {
    const rows = state.pinned ? state.members[units[state.unit][rowsOf[state.current][0]]] : [];
    const detail = { positions: rows.map(row => positions[row]), text: state.pinned ? bareName(units[state.unit][rowsOf[state.current][0]]) : "", last: positions[data.last] };
    root.dispatchEvent(new CustomEvent("heta-lens-pin", { bubbles: true, composed: true, detail }));
  };
  const key = (event, chips) => {
    if (event.target.closest("button") || event.altKey || event.ctrlKey || event.metaKey) return;
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }, step = steps[event.key];
    const visible = chips.map((_, at) => at).filter(at => chips[at].offsetParent);
    const ends = { Home: visible[0], End: visible[visible.length - 1] };
    if (event.key in ends) point(ends[event.key]);
    else if (step) point((step > 0 ? visible.find(at => at > (state.current ?? -1)) : visible.filter(at => at < state.current).pop()) ?? state.current ?? visible[0]);
    else if (event.key === "Enter" || event.key === " ") pin(state.current ?? -1);
    else if (event.key === "Escape") release();
    else return;
    event.preventDefault();
    chips[state.current]?.scrollIntoView({ block: "nearest" });
  };
  let marked = null, map = null;
  const mark = () => {
    const unit = state.current === null ? null : units[state.unit][rowsOf[state.current][0]];
    if (unit !== marked) {
      const [before, now] = [marked, unit].map(own => own === null || !state.members[own] ? [] : chipsOf(own));
      strips.forEach(({ chips }) => {
        before.forEach(chip => chips[chip].classList.remove("now"));
        if (marked === null) chips.forEach(chip => chip.classList.remove("now"));
        now.forEach(chip => chips[chip].classList.add("now"));
      });
      marked = unit;
    }
    strips.forEach(({ chips }) => {
      chips.forEach(chip => chip.matches(".to-here") && chip.classList.remove("to-here"));
      if (state.other !== null) chips[state.other].classList.add("to-here");
    });
    const [row, source] = [state.other ?? state.current, state.current].map(chip => chip === null ? -1 : rowsOf[chip][0]);
    map?.show(targets.indexOf(row), map.sources.indexOf(source));
    find(".tip").textContent = unit === null ? data.hint : described(unit);
    find(".card").classList.toggle("on", state.pinned);
    find(".card").replaceChildren(...(unit === null ? overview() : details(unit)));
  };
  const place = unit => {
    const rows = state.members[unit], [first] = rows, last = rows[rows.length - 1];
    return last > first ? `positions ${positions[first]}–${positions[last]}` : `position ${positions[first]}`;
  };
  const tags = unit => {
    const rows = state.members[unit], target = state.unit === "tokens" ? targets.indexOf(rows[0]) : -1;
    const likely = target >= 0 && data.matrix.likely ? floats(data.matrix.likely)[target] : NaN;
    return [
      likely <= 0 && `predicted with ${percent(Math.exp(likely))}`,
      rows.includes(data.last) && "the prediction is read here",
      rows.some(row => evidence.has(row)) && "evidence", measured && rows.some(row => !measured.has(row)) && "not measured alone", rows.every(hidden) && "hidden",
    ].filter(Boolean);
  };
  /** A token in a line, for a screen reader. */
  const described = unit => {
    const numbers = [...state.results, ...state.beside].map(result =>
      `${result.view.name} ${withError(result, unit, round)} (${percent(result.share(unit))}, rank ${result.ranks[unit] ?? "–"})`);
    return [unitName(unit), place(unit), ...numbers, ...tags(unit)].join(" · ");
  };

  // -------------------------------------------------------------------------------------------------------- the card
  /** A bar from 0 that is full at ``end``, with a line for the standard error; of values with signs, 0 is in the middle. */
  const track = (value, end, signed, error = null) => {
    const at = value => 100 * Math.min(1, Math.max(0, (signed ? .5 + value / end / 2 : value / end) || 0)), zero = signed ? 50 : 0;
    const span = (tag, from, to) => make(tag, "", { style: `left:${Math.min(from, to)}%;width:${Math.abs(to - from)}%`, ...(value < 0 ? { class: "n" } : {}) });
    const bar = make("span", "", { class: "track", "aria-hidden": "true" }, span("i", zero, at(value)));
    if (error) bar.append(span("u", at(value - error), at(value + error)));
    return bar;
  };
  /** The end of a result's bars: its largest value with the error. */
  const reach = result => result.reach ??= Math.max(0, ...result.order.map(unit => Math.abs(result.sums[unit]) + (errorOf(result, unit) ?? 0)));
  const trackOf = (result, unit) => track(result.sums[unit], Math.max(reach(result), Math.abs(result.sums[unit])) || 1, result.signed, errorOf(result, unit));
  const line = (name, result, unit, text) => make("div", "", {}, breakable(name), trackOf(result, unit), make("span", text));
  const overview = () => {
    if (data.compare) return agreement();
    const [result] = state.results, order = bySize(result).filter((unit, at) => at < 6 && (!at || result.share(unit) >= .005));
    const rows = make("div", "", { class: "rows" });
    const names = order.map(unit => bareName(unit).replace(/^“(.*)”$/, "$1"));
    order.forEach((unit, at) => {
      const repeated = names.indexOf(names[at]) !== names.lastIndexOf(names[at]), sign = result.sums[unit] < 0 ? "−" : "";
      const row = line(names[at] + (repeated ? ` at ${positions[state.members[unit][0]]}` : ""), result, unit, sign + percent(result.share(unit)));
      row.className = "pointed";
      row.onmouseover = () => state.pinned || point(chipsOf(unit)[0]);
      row.onclick = () => pin(chipsOf(unit)[0]);
      rows.append(row);
    });
    return [make("h3", `Highest of ${result.order.length} ${unitsName()}: ${result.view.name}, in % of all`), rows, make("p", data.hint, { class: "hint" })];
  };
  const agreement = () => {
    const { value, pairs } = data.agreement, rows = make("div", "", { class: "rows" });
    const said = `is the mean rank correlation of the ${data.by_size ? "sizes of the scores" : "scores"}, over tokens that are not special: 1 for the same order, 0 for unrelated orders, −1 for the reverse.`;
    if (value === null) return [make("h3", "Agreement"), make("p", "is not known: a method gives all tokens one score."), make("p", data.hint, { class: "hint" })];
    if (pairs.length > 1) pairs.forEach(([one, other, own]) => rows.append(make("div", "", {}, breakable(`${one}, ${other}`), track(own, 1, false), make("span", own.toFixed(2).replace("-", "−")))));
    return [make("h3", "Agreement"), make("div", value.toFixed(2).replace("-", "−"), { class: "large" }), make("p", said), rows, make("p", data.hint, { class: "hint" })];
  };
  const details = unit => {
    const [first] = state.results, close = make("button", "unpin", { type: "button" }), rows = make("div", "", { class: "rows" }), rank = first.ranks[unit];
    close.onclick = () => { release(); find(".strip").focus(); };
    [...state.results, ...state.beside].forEach(result => rows.append(line(result.view.name, result, unit, data.compare ? `${number(result.sums[unit], result.most)} · rank ${result.ranks[unit] ?? "–"}` : withError(result, unit))));
    const facts = [place(unit), rank && !data.compare && `rank ${rank} of ${first.order.length}`, !data.compare && percent(first.share(unit))].filter(Boolean);
    const told = make("div", "", { class: "tags" }, ...tags(unit).map(tag => make("span", tag)));
    const head = [...(state.pinned ? [close] : []), make("h3", clip(bareName(unit), 90), { class: "token" })];
    if (state.pick !== null && state.current === state.pick) return [...head, told, ...overview()];
    const members = state.members[unit].map(row => positions[row]), asks = state.pinned && !data.compare && !matrix.size && !members.includes(positions[data.last]);
    const next = [["Test it, with the target if you gave one:", "what_if"], ["How does it get there?", "components"]].map(([ask, name]) => make("p", `${ask} `, { class: "hint" }, make("code", `causal.${name}(cache, [${members.join(", ")}], tokens=tokens)`)));
    return [...head, make("p", facts.join(" · ")), rows, told, ...(asks && members.length <= LISTED ? next : [])];
  };
  const LISTED = 8;  // positions of a word or sentence, in code

  // ------------------------------------------------------------------------------------------------------- the table
  /** Each with a title, the number to sort by, what a cell says, and of a share the result, for its bar. */
  const columns = results => {
    const [first] = results, place = unit => positions[state.members[unit][0]];
    const ranks = result => unit => result.ranks[unit];
    const share = (title, result) => ({ title, number: result.share, text: unit => percent(result.share(unit)), bar: result });
    const basic = [
      { title: "rank", number: ranks(first), text: ranks(first) },
      { title: "position", number: place, text: place },
      { title: state.unit.replace(/s$/, ""), number: place, text: unitName },
    ];
    const difference = result => ({
      title: `rank (change from ${first.view.name})`, number: ranks(result),
      text: unit => `${result.ranks[unit]} (${moved(result.ranks[unit] - first.ranks[unit])})`,
    });
    const values = result => ({ title: result.view.name, number: unit => result.sums[unit], text: unit => withError(result, unit) });
    if (data.compare) return [...basic, ...results.flatMap((result, at) => [values(result), share(`${result.view.name}, share`, result), ...(at ? [difference(result)] : [])])];
    return [...basic, share("share", first), ...[first, ...state.beside].map(values)];
  };
  const ROWS = 10, STEP = 200;
  const table = () => {
    const [first] = state.results, heads = columns(state.results), body = make("tbody"), line = make("tr");
    const sorted = state.sorted ?? heads.findIndex(({ bar }) => bar);
    heads.forEach(({ title }, at) => {
      const own = at === sorted, button = make("button", title + (own ? (state.down ? " ▾" : " ▴") : ""), { type: "button" });
      button.onclick = () => {
        state.down = own ? !state.down : at > 2;
        state.sorted = at;
        table();
        find(`th:nth-child(${at + 1}) button`).focus();
      };
      line.append(make("th", "", { scope: "col", "aria-sort": own ? (state.down ? "descending" : "ascending") : "none" }, button));
    });
    const order = [...first.order].sort((a, b) => (heads[sorted].number(a) - heads[sorted].number(b)) * (state.down ? -1 : 1) || a - b);
    // What holds nearly nothing waits too, until all rows are asked for.
    const some = order.filter((unit, at) => at < 3 || state.sorted !== null || first.share(unit) >= .001 || data.compare).slice(0, ROWS);
    const shareBar = ({ sums, share, order, signed }, unit) => track(Math.sign(sums[unit]) * share(unit), Math.max(...order.map(share)), signed);
    const listed = state.rows ? order.slice(0, state.rows) : some, shownRows = new Set(listed);
    listed.forEach(unit => {
      const row = make("tr");
      heads.forEach(({ text, bar }) => row.append(make("td", "", {}, ...(bar ? [shareBar(bar, unit)] : []), make("span", text(unit)))));
      body.append(row);
    });
    const rest = order.filter(unit => !shownRows.has(unit)), next = Math.min(order.length, state.rows + STEP);
    const more = make("button", !rest.length ? `show ${some.length}` : next < order.length ? `show ${next}` : `show all ${next}`, { type: "button" });
    more.onclick = () => { state.rows = rest.length ? next : 0; table(); };
    const told = make("p", !rest.length ? "" : `${rest.length} more ${unitsName()} hold ${percent(total(rest.map(first.share)))} of ${first.view.name} together.`, {}, more);
    find(".more summary").textContent = `Table of ${order.length} ${unitsName()}`;
    find(".sheet").replaceChildren(make("table", "", {}, make("thead", "", {}, line), body), ...(order.length > some.length ? [told] : []));
  };

  // ---------------------------------------------------------------------------------------------------- the switches
  const change = changes => value => {
    Object.assign(state, { sorted: null, down: true, pick: null, pinned: false, current: null, other: null }, changes(value));
    refresh();
  };
  const viewNames = [...views.map((view, at) => [String(at), view.name]), ["all", "all, one below another"]];
  const viewList = views.length > 1 && select("Colour by", viewNames, String(state.view), change(value => ({ view: value === "all" ? value : +value })));
  if (Object.keys(units).length > 1) select("Add up", Object.keys(units).map(unit => [unit, unit]), state.unit, change(unit => ({ unit })));
  if (matrix.size) select("Click for", [["", "the sources of a target"], ["feeds", "the targets of a source"]], "", change(value => ({ feeds: value === "feeds" })));
  let drawMatrix = () => {};
  const show = kind => root.querySelectorAll("input").forEach(box => {
    if (box.dataset.kind !== kind) return;
    box.checked = false;
    box.onchange();
  });
  if (pieceOf) {
    const box = make("input", "", { type: "checkbox", checked: "" });
    box.onchange = () => { state.folded = box.checked; state.opened.clear(); refresh(); };
    find(".bar").append(make("label", "", {}, box, "Fold what holds little"));
  }
  for (const kind in kinds) {
    const box = make("input", "", { type: "checkbox", "data-kind": kind });
    if (!kinds[kind].size) continue;
    box.checked = hiddenKinds.has(kind);
    box.onchange = () => { hiddenKinds[box.checked ? "add" : "delete"](kind); refresh(); drawMatrix(); };
    find(".bar").append(make("label", "", {}, box, `Hide ${kind}`));
  }
  refresh();

  // ------------------------------------------------------------------------------------------------------ the matrix
  if (matrix.size > 1) {
    const box = make("div", "", { class: "heat", tabindex: "0", role: "application", "aria-label": "Targets in rows, sources in columns; arrow keys move, Enter shows a target's sources" });
    find(".link").append(make("h3", "Targets by sources"), make("p", "Each row is a target, in colours of its own scale. Point at a cell to find both tokens in the text, and click for the target’s sources."), box);
    drawMatrix = () => {
      const text = row => texts[chipOf[row]].trim() || texts[chipOf[row]];
      const sources = chipOf.slice(0, -1).map((_, row) => row).filter(row => !hidden(row)), value = (row, column) => matrix.get(targets[row])[sources[column]] ?? 0;
      const limits = targets.map(target => {
        const values = matrix.get(target), sink = sinkOf(values);
        return deepest(sources.filter(row => row < target && row !== sink).map(row => values[row]));
      });
      const say = (row, column) => {
        if (state.pinned) return;
        point(chipOf[sources[column]], chipOf[targets[row]]);
        const told = `target “${texts[chipOf[targets[row]]]}”, source “${texts[chipOf[sources[column]]]}” at ${positions[sources[column]]}: ${round(value(row, column))}`;
        find(".tip").textContent = told;
        find(".card").append(make("p", told));
      };
      const mark = heat(box, { rows: targets.map(text), columns: sources.map(text), value, deepest: row => limits[row], point: say, leave: () => state.pinned || point(-1), pick: row => pin(chipOf[targets[row]]), release });
      map = { show: mark, sources };
    };
    drawMatrix();
  }
})();
