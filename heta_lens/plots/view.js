(() => {
  const root = document.currentScript?.closest(".heta-view") ?? document.querySelector(".heta-view:not(.live)");
  if (!root || root.classList.contains("live")) return;
  const data = JSON.parse(root.querySelector("script[type]").textContent);
  const find = name => root.querySelector(name);

  // ------------------------------------------------------------------------------------------- numbers and elements
  const floats = text => [...new Float32Array(Uint8Array.from(atob(text), letter => letter.charCodeAt(0)).buffer)];
  const round = value => !value ? "0" : Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5 ? value.toExponential(2) : String(+value.toPrecision(3));
  const percent = share => share > 0 && share < .001 ? "<0.1%" : share < 1 && share > .999 ? ">99.9%" : `${(100 * share).toFixed(1)}%`;
  const moved = places => places > 0 ? `↓${places}` : places < 0 ? `↑${-places}` : "=";
  const clip = text => text.length > 60 ? `${text.slice(0, 59)}…` : text;
  const total = values => values.reduce((sum, value) => sum + value, 0);
  const make = (tag, text = "", attributes = {}) => {
    const element = document.createElement(tag);
    element.textContent = text;
    for (const name in attributes) element.setAttribute(name, attributes[name]);
    return element;
  };
  const select = (label, names, chosen, change) => {
    const list = make("select"), labelled = make("label", `${label} `);
    names.forEach(([value, name]) => list.append(new Option(name, value, false, value === chosen)));
    list.onchange = () => change(list.value);
    labelled.append(list);
    find(".bar").append(labelled);
    return list;
  };

  // -------------------------------------------------------------------------------------------------------- the data
  const original = find(".strip"), letters = node => node?.nodeType === 3 ? node.data.replace(/\n/g, "") : "";
  const texts = [...original.querySelectorAll("b")].map(chip => letters(chip.previousSibling) + chip.textContent);
  const positions = data.positions ?? Array.from({ length: data.count }, (_, row) => row);
  /** Chips are tokens as they are shown: one may stand for several rows of the data, which write one character. */
  const chipOf = [], rowsOf = texts.map(() => []);
  (data.cells ? floats(data.cells) : texts.map(() => 1)).forEach((rows, chip) => {
    while (rows--) rowsOf[chip].push(chipOf.push(chip) - 1);
  });
  const views = data.values.map(view => ({ ...view, values: floats(view.values), errors: view.errors && floats(view.errors) }));
  const units = { tokens: chipOf };
  for (const name in data.units) units[name] = floats(data.units[name].of);
  const kinds = { "first token": new Set(data.first), [data.hidden_name]: new Set(data.hidden) };
  const evidence = new Set(data.marked), hiddenKinds = new Set(data.special ? [] : [data.hidden_name]);
  const state = { view: data.compare ? "all" : 0, unit: "tokens", current: null, pinned: false, pick: null, feeds: false, sorted: -1, down: true, all: false };

  /** Of a span: for every target the scores of what came before it. */
  const unpacked = packed => {
    const values = floats(packed), rows = new Map();
    let from = 0;
    for (const target of data.matrix.targets) {
      const row = values.slice(from, from += target);
      rows.set(target, chipOf.map((_, place) => row[place] ?? 0));
    }
    return rows;
  };
  const once = (known, name, packed) => known[name] ??= unpacked(packed);
  const matrix = data.matrix ? unpacked(data.matrix.scores) : new Map(), parts = {}, errorsOf = {};
  const part = name => once(parts, name, data.matrix.parts[name]);
  const targetsOf = chip => rowsOf[chip].filter(row => matrix.has(row));
  const isPart = view => Object.hasOwn(data.matrix?.parts ?? {}, view.name);
  /** Of the picked token, what a view shows: the scores, or the part of them that it is of. */
  const picked = view => {
    const rows = rowsOf[state.pick], quoted = `“${texts[state.pick]}”`, of = isPart(view) ? part(view.name) : matrix, name = isPart(view) ? view.name : "scores";
    const { what } = isPart(view) ? view : {};
    if (state.feeds) return { what, name: `influence of ${quoted}${isPart(view) ? `, ${name}` : ""}`, values: chipOf.map((_, at) => total(rows.map(row => of.get(at)?.[row] ?? 0))) };
    const targets = targetsOf(state.pick), errors = targets.length === 1 && of === matrix && data.matrix.errors ? once(errorsOf, "scores", data.matrix.errors).get(targets[0]) : null;
    return { what, errors, name: `${name} for ${quoted}`, values: chipOf.map((_, at) => total(targets.map(target => of.get(target)[at]))) };
  };
  const shown = () => state.view === "all" ? views : [state.pick === null ? views[state.view] : picked(views[state.view])];
  /** What is not shown, but said beside it. */
  const others = () => {
    const own = views[state.view];
    if (state.view === "all" || state.pick === null) return views.filter(view => view !== own);
    const scores = views.find(view => !isPart(view));
    return [scores, ...views.filter(isPart)].filter(view => isPart(own) ? view !== own : isPart(view)).map(picked);
  };
  const hidden = row => [...hiddenKinds].some(kind => kinds[kind].has(row));
  const unitName = unit => {
    const chips = new Set(chipOf.filter((_, row) => units[state.unit][row] === unit));
    const text = [...chips].map(chip => texts[chip]).join(""), role = data.units[state.unit]?.roles?.[unit];
    if (role) return role === "template" ? "template" : clip(`${role}: ${text.trim()}`);
    if (state.unit === "tokens") return `“${clip(text)}”${rowsOf[unit].includes(data.last) ? " (last)" : ""}`;
    return `“${clip(text.trim())}”`;
  };

  const height = data.by_size ? Math.abs : number => number;
  /** Where colour is deepest: twice the second largest size, so that one outlier does not bleach the rest. */
  const deepest = values => {
    const [largest = 0, second] = values.map(Math.abs).sort((a, b) => b - a);
    return (second ? Math.min(largest, 2 * second) : largest) || 1;
  };
  /** Where a first word that holds more than a quarter is an attention sink, the scale is that of all others. */
  const sinkOf = values => data.first.find(row => Math.abs(values[row]) > total(values.map(Math.abs)) / 4);
  /** A view added up over tokens, words, sentences or messages; what is hidden has no rank, and no part in the scale. */
  const summed = view => {
    const of = units[state.unit], length = 1 + of.reduce((most, unit) => Math.max(most, unit), 0);
    const [sums, sizes, visible] = [0, 0, false].map(empty => Array(length).fill(empty));
    const whole = total(view.values.map(Math.abs)) || 1;
    let hiddenSize = 0;
    view.values.forEach((value, row) => {
      sums[of[row]] += value;
      sizes[of[row]] += Math.abs(value);
      if (hidden(row)) hiddenSize += Math.abs(value);
      else visible[of[row]] = true;
    });
    const order = sums.map((_, unit) => unit).filter(unit => visible[unit]).sort((a, b) => height(sums[b]) - height(sums[a]) || a - b);
    const ranks = Object.fromEntries(order.map((unit, place) => [unit, place + 1]));
    const share = unit => sizes[unit] / whole, first = of[sinkOf(view.values)];
    const scaled = ["tokens", "words"].includes(state.unit) && visible[first] && order.length > 1 ? order.filter(unit => unit !== first) : order;
    return { view, sums, order, scaled, ranks, share, deepest: deepest(scaled.map(unit => sums[unit])), hidden: hiddenSize / whole };
  };
  const error = (view, unit) => {
    const [row, second] = state.unit === "tokens" ? rowsOf[unit] : [];
    return view.errors && second === undefined && view.errors[row] >= 0 ? ` ± ${round(view.errors[row])}` : "";
  };

  // ------------------------------------------------------------------------------------------------------ the tokens
  let strips = [];
  const rebuild = () => {
    strips.forEach(strip => strip.remove());
    strips = shown().map(view => {
      const element = original.cloneNode(true), strip = make("div");
      if (state.view === "all") strip.append(make("div", view.name, { class: "name" }));
      element.tabIndex = 0;
      strip.append(element);
      (find(".held") ?? find(".tip")).before(strip);
      strip.chips = [...element.querySelectorAll("b")];
      const chip = event => strip.chips.indexOf(event.target.closest("b"));
      element.onmouseover = event => state.pinned || point(chip(event));
      element.onmouseleave = () => state.pinned || point(-1);
      element.onclick = event => pin(chip(event));
      element.onkeydown = event => key(event, strip.chips);
      return strip;
    });
    original.remove();
  };
  const refresh = () => {
    const results = shown().map(summed);
    if (strips.length !== results.length) rebuild();
    results.forEach((result, at) => {
      paint(strips[at], result);
      strips[at].querySelectorAll(".role").forEach(head => share(head, result));
    });
    find(".scales").replaceChildren(...results.map(scale));
    table(results);
    mark();
  };
  const paint = (strip, result) => strip.chips.forEach((chip, place) => {
    const [row] = rowsOf[place], value = result.sums[units[state.unit][row]], off = hidden(row);
    chip.style.setProperty("--a", off ? 0 : Math.min(1, Math.abs(value) / result.deepest).toFixed(3));
    chip.classList.toggle("n", value < 0);
    chip.classList.toggle("off", off);
    chip.classList.toggle("t", targetsOf(place).length > 0);
    chip.classList.toggle("pick", state.pick === place);
    for (let end = chip.nextSibling; end?.nodeName === "BR"; end = end.nextSibling) end.hidden = off && chip.classList.contains("g");
  });
  /** Of a message: how much its tokens hold, of all tokens in percent, and of those that are shown as a bar. */
  const share = (head, result) => {
    const [, bar, text] = head.children, { values } = result.view, own = values.filter((_, row) => units.messages[row] === +head.dataset.message);
    const part = total(own.map(Math.abs)) / (total(values.map(Math.abs)) || 1);
    bar.style.setProperty("--w", part / (1 - result.hidden || 1));
    bar.classList.toggle("n", total(own) < 0);
    text.textContent = percent(part);
  };
  const scale = result => {
    const { view, sums, order, scaled } = result, lowest = order.some(unit => sums[unit] < 0), highest = !lowest || order.some(unit => sums[unit] > 0);
    const ramp = make("span", "", { class: "ramp" }), line = make("div", `${view.name} ${lowest ? `−${round(result.deepest)}` : "0"}`, { class: "scale" });
    const colours = [...(lowest ? ["rgb(var(--neg) / .8)"] : []), "transparent", ...(highest ? ["rgb(var(--pos) / .8)"] : [])];
    ramp.style.background = `linear-gradient(90deg, ${colours.join(",")})`;
    const beyond = scaled.filter(unit => Math.abs(sums[unit]) > result.deepest * 1.0001);
    const clipped = beyond.map(unit => `${unitName(unit)} is ${round(sums[unit])} (${percent(result.share(unit))}), beyond the scale`);
    const notes = [view.what, ...clipped, hiddenKinds.has("first token") && `hidden: ${percent(result.hidden)}`].filter(Boolean);
    line.append(ramp, make("span", highest ? round(result.deepest) : "0"), make("span", notes.join(" · ")));
    return line;
  };

  // ----------------------------------------------------------------------------------------------- pointing, pinning
  const point = chip => {
    state.current = chip < 0 ? null : chip;
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
  };
  const release = () => {
    state.pinned = false;
    if (state.pick !== null) {
      state.pick = null;
      refresh();
    }
    point(-1);
  };
  const key = (event, chips) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
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
  const mark = () => {
    const of = units[state.unit], unit = state.current === null ? null : of[rowsOf[state.current][0]];
    strips.forEach(strip => strip.chips.forEach((chip, place) => chip.classList.toggle("now", of[rowsOf[place][0]] === unit)));
    find(".tip").textContent = unit === null ? data.hint : described(unit);
  };
  const described = unit => {
    const rows = chipOf.map((_, row) => row).filter(row => units[state.unit][row] === unit), [first] = rows, last = rows[rows.length - 1];
    const place = last > first ? `positions ${positions[first]}–${positions[last]}` : `position ${positions[first]}`;
    const numbers = (state.pick === null ? views : [views[0], ...shown(), ...others()]).map(summed).map(result =>
      `${result.view.name} ${round(result.sums[unit])}${error(result.view, unit)} (${percent(result.share(unit))}, rank ${result.ranks[unit] ?? "–"})`);
    const more = [rows.some(row => evidence.has(row)) && "evidence", rows.every(hidden) && "hidden"];
    return [unitName(unit), place, ...numbers, ...more].filter(Boolean).join(" · ");
  };

  // ------------------------------------------------------------------------------------------------------- the table
  /** Each with a title, the number to sort by, what a cell says, and of a share the result, for its bar. */
  const columns = results => {
    const [first] = results, place = unit => positions[units[state.unit].indexOf(unit)];
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
    const values = result => ({ title: result.view.name, number: unit => result.sums[unit], text: unit => round(result.sums[unit]) + error(result.view, unit) });
    if (data.compare) return [...basic, ...results.flatMap((result, at) => [values(result), share(`${result.view.name}, share`, result), ...(at ? [difference(result)] : [])])];
    return [...basic, share("share", first), ...[first, ...others().map(summed)].map(values)];
  };
  const table = results => {
    const heads = columns(results), element = make("table"), line = element.createTHead().insertRow(), body = element.createTBody(), [first] = results;
    heads.forEach(({ title }, at) => {
      const own = at === state.sorted, button = make("button", title + (own ? (state.down ? " ▾" : " ▴") : ""), { type: "button" });
      const cell = make("th", "", { scope: "col", "aria-sort": own ? (state.down ? "descending" : "ascending") : "none" });
      button.onclick = () => {
        state.down = own ? !state.down : at > 2;
        state.sorted = at;
        table(results);
        find(`th:nth-child(${at + 1}) button`).focus();
      };
      cell.append(button);
      line.append(cell);
    });
    const order = [...first.order], number = heads[state.sorted]?.number;
    if (number) order.sort((a, b) => (number(a) - number(b)) * (state.down ? -1 : 1));
    else if (order.some(unit => first.sums[unit] < 0)) order.sort((a, b) => Math.abs(first.sums[b]) - Math.abs(first.sums[a]));
    order.slice(0, state.all ? order.length : 20).forEach(unit => {
      const row = body.insertRow();
      heads.forEach(({ number, text, bar }) => {
        const cell = row.insertCell();
        cell.append(text(unit));
        if (bar) cell.style.background = `linear-gradient(90deg, rgb(var(${bar.sums[unit] < 0 ? "--neg" : "--pos"}) / .25) ${100 * number(unit)}%, transparent 0)`;
      });
    });
    const more = make("button", state.all ? "show the first 20" : `show all ${order.length}`, { type: "button" });
    more.onclick = () => { state.all = !state.all; table(results); };
    find(".more").replaceChildren(element, ...(order.length > 20 ? [more] : []));
  };

  // ---------------------------------------------------------------------------------------------------- the switches
  const change = changes => value => {
    Object.assign(state, { sorted: -1, pick: null, pinned: false, current: null }, changes(value));
    refresh();
  };
  const viewNames = [...views.map((view, at) => [String(at), view.name]), ["all", "all, one below another"]];
  const viewList = views.length > 1 && select("colour by", viewNames, String(state.view), change(value => ({ view: value === "all" ? value : +value })));
  if (Object.keys(units).length > 1) select("by", Object.keys(units).map(unit => [unit, unit]), state.unit, change(unit => ({ unit })));
  if (matrix.size) select("click a token for", [["", "the sources of a target"], ["feeds", "the targets of a source"]], "", change(value => ({ feeds: value === "feeds" })));
  let drawMatrix = () => {};
  for (const kind in kinds) {
    const rows = [...kinds[kind]].join(), label = make("label"), box = make("input", "", { type: "checkbox" });
    if (!rows) continue;
    box.checked = hiddenKinds.has(kind);
    box.onchange = () => { hiddenKinds[box.checked ? "add" : "delete"](kind); refresh(); drawMatrix(); };
    label.append(box, ` hide ${kind}`);
    find(".bar").append(label);
  }

  const [red, green, blue] = getComputedStyle(root).color.match(/[\d.]+/g).map(Number);
  root.classList.toggle("dark", .2126 * red + .7152 * green + .0722 * blue > 128);
  root.classList.add("live");
  refresh();
  if (matrix.size > 1) {
    const targets = [...matrix.keys()], text = row => texts[chipOf[row]];
    find(".more").before(make("div", "targets by sources; the deepest colour of each row is its largest score, or twice the second", { class: "name" }), make("div", "", { class: "heat" }));
    drawMatrix = () => {
      const sources = chipOf.slice(0, -1).map((_, row) => row).filter(row => !hidden(row)), value = (row, column) => matrix.get(targets[row])[sources[column]];
      const limits = targets.map(target => {
        const values = matrix.get(target), sink = sinkOf(values);
        return deepest(sources.filter(row => row !== sink).map(row => values[row]));
      });
      const box = make("div", "", { class: "heat", role: "img", "aria-label": "targets in rows, sources in columns" });
      const say = (row, column) => { find(".tip").textContent = `target “${text(targets[row])}”, source “${text(sources[column])}” at ${positions[sources[column]]}: ${round(value(row, column))}`; };
      find(".heat").replaceWith(box);
      heat(box, { rows: targets.map(text), columns: sources.map(text), value, deepest: row => limits[row], point: say, pick: row => pin(chipOf[targets[row]]) });
    };
    drawMatrix();
  }
})();
