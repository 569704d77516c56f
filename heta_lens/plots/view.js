(() => {
  //: heat.js
  const root = document.currentScript?.closest(".heta-view") ?? document.querySelector(".heta-view:not(.live)");
  if (!root || root.classList.contains("live")) return;
  const data = JSON.parse(root.querySelector("script[type]").textContent);
  const find = name => root.querySelector(name);

  // ------------------------------------------------------------------------------------------- numbers and elements
  const bytes = text => Uint8Array.from(atob(text), letter => letter.charCodeAt(0)).buffer;
  const floats = text => [...new Float32Array(bytes(text))];
  const half = bits => (bits & 0x8000 ? -1 : 1) * ((bits >> 10 & 31) ? 2 ** ((bits >> 10 & 31) - 15) * (1 + (bits & 1023) / 1024) : 2 ** -24 * (bits & 1023));
  const round = value => !value ? "0" : Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5 ? value.toExponential(2) : String(+value.toPrecision(3));
  const percent = share => share > 0 && share < .001 ? "<0.1 %" : share < 1 && share > .999 ? ">99.9 %" : `${(100 * share).toFixed(1)} %`;
  const make = (tag, text = "", attributes = {}) => {
    const made = document.createElement(tag);
    made.textContent = text;
    for (const name in attributes) made.setAttribute(name, attributes[name]);
    return made;
  };
  const select = (label, names, chosen, change) => {
    const list = make("select");
    names.forEach(([value, name]) => list.append(new Option(name, value, false, value === chosen)));
    list.onchange = () => change(list.value);
    const made = make("label", `${label} `);
    made.append(list);
    return made;
  };

  // ------------------------------------------------------------------------------------------------------- the data
  const original = find(".strip"), letters = node => node?.nodeType === 3 ? node.data.replace(/\n/g, "") : "";
  const texts = [...original.querySelectorAll("b")].map(chip => letters(chip.previousSibling) + chip.textContent);
  const positions = data.positions ?? Array.from({ length: data.count }, (_, row) => row);
  const chipOf = (data.cells ? floats(data.cells) : Array(data.count).fill(1)).flatMap((rows, chip) => Array(rows).fill(chip));
  const count = chipOf.length;
  const firstRow = [...new Set(chipOf)].map(chip => chipOf.indexOf(chip));
  const views = data.values.map(view => ({ ...view, values: floats(view.values), errors: view.errors && floats(view.errors) }));
  const units = { tokens: chipOf };
  for (const name in data.units) units[name] = floats(data.units[name].of);
  const kinds = { "first token": data.first, "special tokens": data.special, "the chat template": data.template };
  const state = { view: data.compare ? "all" : 0, unit: data.by ?? "tokens", hidden: new Set(), now: null, pinned: false, sort: null, down: true, all: false, feeds: false, pick: null };

  /** Of a span: for every target the scores of what came before it. */
  const matrix = new Map();
  if (data.matrix) {
    const halves = new Uint16Array(bytes(data.matrix.halves));
    let from = 0;
    data.matrix.targets.forEach((target, at) => {
      const scale = data.matrix.scales[at], row = halves.subarray(from, from += target);
      matrix.set(target, Array.from({ length: count }, (_, place) => place < target ? half(row[place]) * scale : 0));
    });
  }
  const picked = () => {
    if (state.pick === null) return null;
    const row = firstRow[state.pick];
    if (!state.feeds) return matrix.has(row) ? { name: `what made ${name(state.pick)}`, values: matrix.get(row) } : null;
    return { name: `what ${name(state.pick)} feeds`, values: chipOf.map((_, at) => matrix.get(at)?.[row] ?? 0) };
  };
  const shown = () => state.view === "all" ? views : [picked() ?? views[state.view]];
  const hidden = row => [...state.hidden].some(kind => kinds[kind].includes(row));
  const name = unit => {
    const chips = [...new Set(chipOf.filter((_, row) => units[state.unit][row] === unit))];
    const text = chips.map(chip => texts[chip]).join("");
    const role = data.units[state.unit]?.roles?.[unit];
    return role ? `${role}: ${role === "template" ? "…" : text.trim()}` : `“${state.unit === "tokens" ? text : text.trim()}”`;
  };

  /** Where colour is deepest: twice the second largest size, so that one outlier does not bleach the rest. */
  const deepest = values => {
    const [largest = 0, second] = values.map(Math.abs).sort((a, b) => b - a);
    return (second ? Math.min(largest, 2 * second) : largest) || 1;
  };
  /** Sums of a view over words, sentences or messages, without what is hidden. */
  const summed = view => {
    const of = units[state.unit], length = Math.max(...of) + 1;
    const sums = Array(length).fill(0), sizes = Array(length).fill(0), live = Array(length).fill(false);
    let held = 0;
    view.values.forEach((value, row) => {
      if (hidden(row)) return held += Math.abs(value);
      sums[of[row]] += value;
      sizes[of[row]] += Math.abs(value);
      live[of[row]] = true;
    });
    const whole = view.values.reduce((sum, value) => sum + Math.abs(value), 0) || 1;
    const order = sums.map((_, unit) => unit).filter(unit => live[unit]).sort((a, b) => sums[b] - sums[a] || a - b);
    const ranks = Object.fromEntries(order.map((unit, place) => [unit, place + 1]));
    return { view, sums, order, ranks, deepest: deepest(order.map(unit => sums[unit])), share: unit => sizes[unit] / whole, held: held / whole };
  };
  const error = (view, unit) => {
    const row = firstRow[unit];
    return state.unit === "tokens" && view.errors && chipOf[row + 1] !== unit && view.errors[row] >= 0 ? ` ± ${round(view.errors[row])}` : "";
  };

  // ------------------------------------------------------------------------------------------------------ the tokens
  let strips = [];
  const lay = () => {
    strips.forEach(strip => strip.remove());
    strips = shown().map(view => {
      const element = original.cloneNode(true), box = make("div");
      if (state.view === "all") box.append(make("div", view.name, { class: "name" }));
      element.tabIndex = 0;
      element.setAttribute("aria-label", `tokens, coloured by ${view.name}; arrow keys move, Enter pins`);
      box.append(element);
      find(".tip").before(box);
      box.chips = [...element.querySelectorAll("b")];
      const chip = event => box.chips.indexOf(event.target.closest("b"));
      element.onmouseover = event => state.pinned || point(chip(event));
      element.onmouseleave = () => state.pinned || point(-1);
      element.onclick = event => pin(chip(event));
      element.onkeydown = event => key(event, box.chips.length);
      return box;
    });
    original.remove();
  };
  const paint = () => {
    const results = shown().map(summed);
    results.forEach((result, at) => strips[at].chips.forEach((chip, place) => {
      const row = firstRow[place], unit = units[state.unit][row], value = result.sums[unit];
      chip.style.setProperty("--a", hidden(row) ? 0 : Math.min(1, Math.abs(value) / result.deepest).toFixed(3));
      chip.classList.toggle("n", value < 0);
      chip.classList.toggle("off", hidden(row));
      chip.classList.toggle("t", matrix.has(row));
      chip.classList.toggle("pick", state.pick === place);
    }));
    results.forEach((result, at) => strips[at].querySelectorAll(".role").forEach(head => {
      const of = units.messages, message = +head.dataset.message, sizes = [0, 0];
      result.view.values.forEach((value, row) => sizes[+(of[row] === message)] += Math.abs(value));
      const share = sizes[1] / (sizes[0] + sizes[1] || 1);
      head.children[1].style.setProperty("--w", share);
      head.children[1].classList.toggle("n", result.view.values.reduce((sum, value, row) => sum + (of[row] === message) * value, 0) < 0);
      head.children[2].textContent = percent(share);
    }));
    scale(results);
    table(results);
    mark();
  };
  const scale = results => find(".scales").replaceChildren(...results.map(result => {
    const { view, sums, order, deepest } = result, lowest = order.some(unit => sums[unit] < 0), highest = order.some(unit => sums[unit] > 0);
    const ramp = make("span", "", { class: "ramp" });
    const colours = [...(lowest ? ["rgb(var(--neg) / .8)"] : []), "transparent", ...(highest || !lowest ? ["rgb(var(--pos) / .8)"] : [])];
    ramp.style.background = `linear-gradient(90deg, ${colours.join(",")})`;
    const beyond = order.filter(unit => Math.abs(sums[unit]) > deepest * 1.0001);
    const clipped = beyond.map(unit => `${name(unit)} is ${round(sums[unit])} (${percent(result.share(unit))}), beyond the scale, which ends at twice the second largest`);
    const held = state.hidden.size ? [`hidden: ${percent(result.held)}`] : [];
    const ends = [lowest ? `−${round(deepest)}` : "0", highest || !lowest ? round(deepest) : "0"];
    const line = make("div", `${view.name} ${ends[0]}`, { class: "scale" });
    line.append(ramp, [ends[1], view.what, ...clipped, ...held].filter(Boolean).join(" · "));
    return line;
  }));

  // ----------------------------------------------------------------------------------------------- pointing, pinning
  const point = chip => {
    state.now = chip < 0 ? null : chip;
    mark();
  };
  const pin = chip => {
    if (chip < 0) return;
    if (matrix.size) {
      state.pick = state.pick === chip ? null : chip;
      lay();
      paint();
    }
    state.pinned = !(state.pinned && state.now === chip);
    point(chip);
  };
  const key = (event, length) => {
    const now = state.now ?? -1, moves = { ArrowRight: now + 1, ArrowDown: now + 1, ArrowLeft: now - 1, ArrowUp: now - 1, Home: 0, End: length - 1 };
    if (event.key in moves) point(Math.min(length - 1, Math.max(0, moves[event.key])));
    else if (event.key === "Enter" || event.key === " ") pin(now);
    else if (event.key === "Escape") { state.pinned = false; point(-1); }
    else return;
    event.preventDefault();
    strips[0].chips[state.now]?.scrollIntoView({ block: "nearest" });
  };
  const mark = () => {
    const row = state.now === null ? -1 : firstRow[state.now], unit = row < 0 ? -1 : units[state.unit][row];
    strips.forEach(strip => strip.chips.forEach((chip, place) => chip.classList.toggle("now", row >= 0 && units[state.unit][firstRow[place]] === unit)));
    find(".tip").textContent = row < 0 ? data.hint : described(unit, row);
  };
  const described = (unit, row) => {
    const rows = units[state.unit].flatMap((own, at) => own === unit ? [positions[at]] : []);
    const place = rows.length > 1 ? `positions ${rows[0]}–${rows[rows.length - 1]}` : `position ${rows[0]}`;
    const parts = (matrix.size ? [...new Set([views[0], ...shown()])] : views).map(summed).map(result =>
      `${result.view.name} ${round(result.sums[unit])}${error(result.view, unit)} (${percent(result.share(unit))}, rank ${result.ranks[unit] ?? "–"})`);
    const more = [data.marked.includes(row) && "evidence", hidden(row) && "hidden"].filter(Boolean);
    return [name(unit), place, ...parts, ...more].join(" · ");
  };

  // ------------------------------------------------------------------------------------------------------- the table
  const columns = results => {
    const [first] = results, place = unit => positions[units[state.unit].indexOf(unit)];
    const rank = result => unit => result.ranks[unit];
    const basic = [
      ["rank", rank(first), unit => first.ranks[unit]], ["position", place, place], [state.unit.replace(/s$/, ""), place, name],
    ];
    if (data.compare) return [...basic, ...results.flatMap((result, at) => [
      [result.view.name, result.share, unit => percent(result.share(unit))],
      ...(at ? [[`rank (against ${first.view.name})`, rank(result), unit => `${result.ranks[unit]} (${signed(result.ranks[unit] - first.ranks[unit])})`]] : []),
    ])];
    const others = state.pick === null ? views.filter(view => view !== first.view) : [];
    return [...basic, ["share", first.share, unit => percent(first.share(unit))],
      ...[first, ...others.map(summed)].map(result => [result.view.name, unit => result.sums[unit], unit => round(result.sums[unit]) + error(result.view, unit)])];
  };
  const signed = number => number > 0 ? `+${number}` : number < 0 ? `−${-number}` : "=";
  const table = results => {
    const heads = columns(results), made = make("table"), line = made.createTHead().insertRow(), body = made.createTBody();
    const sorting = heads.findIndex(([head]) => head === state.sort), [first] = results;
    heads.forEach(([head], at) => {
      const cell = make("th", "", { scope: "col", "aria-sort": at === sorting ? (state.down ? "descending" : "ascending") : "none" });
      const button = make("button", head + (at === sorting ? (state.down ? " ▾" : " ▴") : ""), { type: "button" });
      button.onclick = () => {
        state.down = state.sort === head ? !state.down : at > 2;
        state.sort = head;
        table(results);
        find(`th:nth-child(${at + 1}) button`).focus();
      };
      cell.append(button);
      line.append(cell);
    });
    const order = [...first.order];
    if (sorting < 0 && order.some(unit => first.sums[unit] < 0)) order.sort((a, b) => Math.abs(first.sums[b]) - Math.abs(first.sums[a]));
    if (sorting >= 0) order.sort((a, b) => (heads[sorting][1](a) - heads[sorting][1](b)) * (state.down ? -1 : 1));
    order.slice(0, state.all ? order.length : 20).forEach(unit => {
      const row = body.insertRow();
      heads.forEach(([head, number, text]) => {
        const cell = row.insertCell();
        cell.append(text(unit));
        if (text(unit).endsWith?.("%")) cell.style.background = `linear-gradient(90deg, rgb(var(--pos) / .25) ${100 * number(unit)}%, transparent 0)`;
      });
    });
    const more = make("button", state.all ? "show the first 20" : `show all ${order.length}`, { type: "button" });
    more.onclick = () => { state.all = !state.all; table(results); };
    find(".more").replaceChildren(made, ...(order.length > 20 ? [more] : []));
  };

  // ---------------------------------------------------------------------------------------------------- the switches
  const change = changes => value => {
    Object.assign(state, changes(value));
    lay();
    paint();
  };
  const bar = find(".bar");
  if (views.length > 1) {
    const names = views.map((view, at) => [String(at), view.name]);
    bar.append(select("colour by", [...names, ["all", "all, one below another"]], String(state.view), change(value => ({ view: value === "all" ? value : +value, pick: null }))));
  }
  if (Object.keys(units).length > 1) bar.append(select("by", Object.keys(units).map(unit => [unit, unit]), state.unit, change(unit => ({ unit, now: null, pinned: false }))));
  if (matrix.size) bar.append(select("pick a token to see", [["", "what made it"], ["feeds", "what it feeds"]], "", change(value => ({ feeds: value === "feeds", pick: null }))));
  const offered = new Set();
  for (const kind in kinds) {
    const same = kinds[kind].join();
    if (!same || offered.has(same)) continue;
    offered.add(same);
    const label = make("label"), box = make("input", "", { type: "checkbox" });
    box.onchange = () => { state.hidden[box.checked ? "add" : "delete"](kind); paint(); };
    label.append(box, ` hide ${kind}`);
    bar.append(label);
  }

  const [red, green, blue] = getComputedStyle(root).color.match(/[\d.]+/g).map(Number);
  root.classList.toggle("dark", .2126 * red + .7152 * green + .0722 * blue > 128);
  root.classList.add("live");
  lay();
  paint();
  if (matrix.size > 1) {
    const targets = [...matrix.keys()], sources = chipOf.map((_, row) => row);
    const most = targets.map(target => deepest(matrix.get(target)));
    const text = row => texts[chipOf[row]];
    const box = make("div", "", { class: "heat", role: "img", "aria-label": "targets in rows, sources in columns" });
    find(".more").before(box);
    heat(box, {
      rows: targets.map(text), columns: sources.map(text), value: (row, column) => matrix.get(targets[row])[column],
      deepest: row => most[row],
      point: (row, column) => find(".tip").textContent = `“${text(targets[row])}” from “${text(column)}” at ${positions[column]}: ${round(matrix.get(targets[row])[column])}`,
      pick: row => pin(chipOf[targets[row]]),
    });
  }
})();
