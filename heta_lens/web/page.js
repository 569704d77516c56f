(() => {
  const { nonce } = document.currentScript;
  const facts = JSON.parse(document.getElementById("facts").textContent);
  const $ = name => document.querySelector(name), $$ = name => [...document.querySelectorAll(name)];
  const make = (tag, text = "", attributes = {}, ...children) => {
    const element = document.createElement(tag);
    element.textContent = text;
    for (const name in attributes) element.setAttribute(name, attributes[name]);
    element.append(...children);
    return element;
  };
  const percent = share => share > 0 && share < .001 ? "<0.1%" : share < 1 && share > .999 ? ">99.9%" : `${(100 * share).toFixed(1)}%`;
  const number = value => Math.abs(value) < .001 ? "less than 0.001" : Number(value.toPrecision(3)).toString().replace("-", "−");
  const clip = (text, length = 40) => text.length > length ? `${text.slice(0, length - 1)}…` : text;
  const quoted = text => `“${text.trim() || text}”`;

  /** What is asked, which a reload asks again; what was answered is in ``found``, by method. */
  const state = { mode: "text", messages: [{ role: "user", content: "" }], written: [], prompt: null, at: undefined, target: null, methods: ["fast", "heta"], shown: "fast", tokens: 20 };
  const found = new Map();
  let chosen = [], changed = "", working = new AbortController(), running = new Set();
  const save = () => sessionStorage.setItem(location.pathname, JSON.stringify(state));

  // -------------------------------------------------------------------------------------------------------- the server
  const GONE = "The server does not answer. Start it again, and open the address that it prints.";
  const OTHER = "This address is of an earlier start of the app. Open the address that the terminal shows.";
  /** Post a question, and yield the lines of the answer; an error is a line too. */
  async function* lines(path, body, signal) {
    let response;
    try {
      response = await fetch(path, { method: "POST", body: JSON.stringify(body), signal });
    } catch (error) {
      if (error.name === "AbortError") return;
      throw new Error(GONE);
    }
    if (response.status === 404) throw new Error(OTHER);
    if (!response.ok) throw new Error((await response.json().catch(() => null))?.error ?? `The server answers ${response.status}.`);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    while (true) {
      let part;
      try {
        part = await reader.read();
      } catch (error) {
        if (error.name === "AbortError") return;
        throw new Error(GONE);
      }
      if (part.done) return;
      const complete = (rest + part.value).split("\n");
      rest = complete.pop();
      for (const line of complete) {
        const told = JSON.parse(line);
        if (told.error) throw new Error(told.error);
        yield told;
      }
    }
  }
  const say = (text, error = false, live = "polite") => {
    $("#says").setAttribute("aria-live", live);  // numbers that change all the time are not read out
    $("#says").textContent = text;
    $("#says").classList.toggle("error", error);
  };
  /** End what is being computed, and do something else; return whether nothing else took its place. */
  const instead = async work => {
    working.abort();
    const own = working = new AbortController();
    $("#stop").hidden = false;
    say("");
    try {
      await work(own.signal);
    } catch (error) {
      if (own === working) say(error.message, true);
    }
    if (own !== working) return false;
    $("#stop").hidden = true;
    running = new Set();
    if (!$("#why").hidden) drawTabs();
    return !own.signal.aborted;
  };

  // -------------------------------------------------------------------------------------------------------- the prompt
  const drawPrompt = () => {
    const chat = state.mode === "chat", rows = chat ? state.messages : [state.messages[state.messages.length - 1]];
    $$("[name=mode]").forEach(box => { box.checked = box.value === state.mode; });
    $("#messages").replaceChildren(...rows.map((message, at) => {
      const text = make("textarea", "", { rows: 3, "aria-label": chat ? `message ${at + 1}` : "prompt", placeholder: chat ? "" : "The capital of Portugal is" });
      text.value = message.content;
      text.oninput = () => { message.content = text.value; save(); drawHint(); };
      text.onkeydown = event => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("#ask").requestSubmit(); };
      if (!chat) return make("div", "", { class: "message text" }, text);
      const role = make("select", "", { "aria-label": `role of message ${at + 1}` });
      ["system", "user", "assistant"].forEach(name => role.append(new Option(name, name, false, name === message.role)));
      role.onchange = () => { message.role = role.value; save(); };
      const remove = make("button", "✕", { type: "button", "aria-label": `remove message ${at + 1}` });
      remove.disabled = rows.length === 1;
      remove.onclick = () => { state.messages.splice(at, 1); drawPrompt(); save(); };
      return make("div", "", { class: "message" }, role, text, remove);
    }));
    if (!chat) return;
    const more = make("button", "Add a message", { type: "button" });
    more.onclick = () => {
      state.messages.push({ role: state.messages.at(-1).role === "user" ? "assistant" : "user", content: "" });
      drawPrompt();
      $$("#messages textarea").at(-1).focus();
      save();
    };
    $("#messages").append(more);
  };
  const promptNow = () => state.mode === "chat" ? state.messages : state.messages.at(-1).content;
  /** Begin anew with a prompt. */
  const begin = prompt => {
    Object.assign(state, { prompt, written: [], at: undefined, target: null });
    found.clear();
    choose([], "");
    for (const name of ["#answer", "#why", "#what-if"]) $(name).hidden = true;
    save();
  };
  const generate = () => instead(async signal => {
    const prompt = structuredClone(promptNow());
    let begun = false;
    state.tokens = +$("#tokens").value;
    for await (const { token, text } of lines("write", { prompt, tokens: state.tokens }, signal)) {
      if (!begun) begin(prompt);
      begun = true;
      state.written.push({ token, text });
      drawAnswer();
    }
    save();
  });

  // -------------------------------------------------------------------------------------------------------- the answer
  const current = () => JSON.stringify(state.prompt) === JSON.stringify(promptNow());
  const drawHint = () => {
    $("#answer .hint").textContent = current() ? "Click a word to see which tokens made it." : "This is the answer to the prompt as it was: generate again for the new one.";
  };
  const drawAnswer = () => {
    drawHint();
    $("#answer").hidden = !state.written.length;
    const buttons = state.written.map(({ text }, at) => {
      const shown = text.replace(/\n/g, "↵\n"), button = make("button", shown.trim() ? shown : shown.replace(/ /g, "·") || "∅", { type: "button", "aria-pressed": String(state.at === at) });
      button.onclick = () => ask(at);
      return button;
    });
    const focused = $(".words").contains(document.activeElement);
    const all = make("button", "whole answer", { type: "button", class: "all", "aria-pressed": String(state.at === null) });
    all.onclick = () => ask(null);
    $(".words").replaceChildren(...buttons, all);
    if (focused) $(".words [aria-pressed=true]")?.focus();
  };
  const question = () => ({ prompt: state.prompt, written: state.written.map(({ token }) => token), at: state.at, target: state.target });

  // -------------------------------------------------------------------------------------------------- the explanation
  /** Ask about a word of the answer, by its place; about the next token, or, with null, about all words. */
  const ask = (at, target = null) => {
    const before = { at: state.at, target: state.target, found: [...found] };
    Object.assign(state, { at, target });
    found.clear();
    choose([], "");
    drawAnswer();
    explain(state.methods, before);
  };
  /** Explain by methods, the slow one last; a question that cannot be answered leaves what was shown before it. */
  const explain = (methods, before = null, remember = true) => instead(async signal => {
    methods = [...methods].sort((one, other) => (one === "heta") - (other === "heta"));
    running = new Set(methods);
    $("#view").classList.toggle("stale", !found.size);
    save();
    $("#why").hidden = false;
    $("#what-if").hidden = state.at === null;
    if (!methods.includes(state.shown) && !found.has(state.shown)) state.shown = methods[0];
    drawTabs();
    const asked = { question: question(), methods, remember };
    try {
      await show_all(asked, signal);
    } catch (error) {
      if (!found.size && before?.found.length) {
        Object.assign(state, { at: before.at, target: before.target });
        before.found.forEach(([name, told]) => found.set(name, told));
        $("#view").classList.remove("stale");
        $("#what-if").hidden = state.at === null;
        drawAnswer();
        save();
      }
      throw error;
    }
    if (!signal.aborted && $("#history").open) listHistory();
  });
  const show_all = async (asked, signal) => {
    for await (const told of lines("explain", asked, signal)) {
      if (told.html && state.methods.includes(told.method)) {
        const before = found.get(told.method);
        found.set(told.method, told);
        if (!before && !found.has(state.shown)) state.shown = told.method;
        if (state.shown === told.method) show(told.method);
        else drawTabs();
        if (told.whole) running.delete(told.method);
        say(told.whole ? "" : `${told.method}: from few probes; the error bars will shrink`);
      } else if (!told.html) say(`${told.method}: ${told.waiting ? "waiting for another question’s work" : told.done === null ? `${told.runs} runs` : percent(told.done)}`, false, "off");
    }
  };
  const show = name => {
    state.shown = name;
    drawTabs();
    draw(found.get(name));
    choose(chosen, changed);
    save();
  };
  /** Put a view of the library into the page; scripts that come as text are not run until they are put in anew. */
  const draw = ({ html, result, files }) => {
    $("#view").classList.remove("stale");
    $("#view").innerHTML = html;
    for (const old of $$("#view script:not([type])")) {
      const script = make("script", old.textContent);
      script.nonce = nonce;
      old.replaceWith(script);
    }
    const links = files.map(suffix => make("a", suffix === ".html" ? "page" : suffix.slice(1).toUpperCase(), { href: `files/${result}${suffix}`, download: "" }));
    $("#files").replaceChildren("Save as", ...links);
  };
  const drawTabs = () => {
    const tabs = state.methods.map(name => {
      const known = found.get(name), tab = make("button", name, { type: "button", "aria-pressed": String(state.shown === name) });
      const state_of = running.has(name) ? known ? "first look …" : "…" : known ? (known.whole ? "" : "first look") : "not run";
      tab.append(" ", make("small", [known && `${known.seconds.toFixed(1)} s`, state_of].filter(Boolean).join(" · ")));
      tab.disabled = !known && running.has(name);
      tab.onclick = () => { if (known) show(name); if (!known?.whole && !running.has(name)) explain([name]); };
      if (state.methods.length === 1) return make("span", "", {}, tab);
      const close = make("button", "✕", { type: "button", class: "close", "aria-label": `without ${name}` });
      close.onclick = () => {
        state.methods = state.methods.filter(other => other !== name);
        found.delete(name);
        if (state.shown === name) found.size ? show([...found.keys()][0]) : explain(state.methods);
        drawTabs();
        save();
      };
      return make("span", "", {}, tab, close);
    });
    const more = make("select", "", { "aria-label": "another method" });
    more.append(new Option("another method …", ""));
    for (const [group, names] of facts.methods) {
      const free = Object.entries(names).filter(([name]) => !state.methods.includes(name));
      more.append(make("optgroup", "", { label: group }, ...free.map(([name, meaning]) => make("option", name, { value: name, title: meaning }))));
    }
    more.onchange = () => {
      const waiting = state.methods.filter(name => !found.get(name)?.whole);
      state.methods.push(more.value);
      state.shown = more.value;
      explain([more.value, ...waiting]);
    };
    const compare = make("button", "Compare", { type: "button", "aria-pressed": String(state.shown === "compared") });
    compare.disabled = found.size < 2;
    compare.onclick = () => instead(async signal => {
      const results = state.methods.filter(name => found.has(name)).map(name => found.get(name).result);
      for await (const told of lines("compare", { results }, signal)) {
        state.shown = "compared";
        drawTabs();
        draw(told);
      }
    });
    $(".tabs").replaceChildren(...tabs, more, compare);
  };

  // -------------------------------------------------------------------------------------------------------- what if
  const form = $("#what-if form"), fields = form.elements;
  const choose = (positions, text) => {
    chosen = positions;
    changed = text;
    $("#chosen").textContent = positions.length ? `If ${text} at ${positions.length > 1 ? `${positions[0]}–${positions.at(-1)}` : positions[0]} …` : "Click a token of the prompt above, and choose what happens to it.";
    form.querySelector("[type=submit]").disabled = !positions.length;
    if (!positions.length) $("#outcome").replaceChildren();
  };
  $("#view").addEventListener("heta-lens-pin", ({ detail }) => { if (state.at !== null) choose(detail.positions, detail.text); });
  fields.how.onchange = () => form.querySelectorAll("[data-for]").forEach(field => { field.hidden = field.dataset.for !== fields.how.value; });
  const DONE = {
    mask: () => "masked by zeros", delete: () => "deleted", replace: () => `replaced by ${quoted(fields.text.value)}`,
    patch: () => `patched at layer ${+fields.layer.value} from ${quoted(clip(fields.counterfactual.value))}`,
  };
  form.onsubmit = event => {
    event.preventDefault();
    const how = fields.how.value, own = fields.counterfactual.value, done = DONE[how](), waiting = state.methods.filter(name => !found.get(name)?.whole);
    const messages = typeof state.prompt !== "string" ? [...state.prompt.slice(0, -1), { ...state.prompt.at(-1), content: own }] : own;
    const names = [...found.keys()], results = names.map(name => found.get(name).result);
    const what = changed, positions = chosen, change = { positions, how, text: fields.text.value, counterfactual: messages, layer: +fields.layer.value, results };
    instead(async signal => {
      $("#outcome").replaceChildren("…");
      try {
        for await (const told of lines("what-if", { question: question(), change }, signal)) drawOutcome(told, { how, done, what, positions, names });
      } catch (error) {
        $("#outcome").replaceChildren(make("p", error.message, { class: "error" }));
      }
      if (signal.aborted) $("#outcome").replaceChildren();
    }).then(alone => { if (alone && waiting.length) explain(waiting); });
  };
  const drawOutcome = ({ before, after, drop, kl, tokens, promised }, { how, done, what, positions, names: methods }) => {
    const asked = tokens?.filter(row => row.target) ?? [];
    const said = asked.length === 1 ? `${quoted(asked[0].text)} goes from ${percent(asked[0].before)} to ${percent(asked[0].after)}` : `the number goes from ${number(before)} to ${number(after)}`;
    const moved = kl === undefined ? "" : ` The whole prediction moves by ${number(kl)} nats${how === "mask" && positions.length === 1 ? ", the score of leave_one_out" : ""}.`;
    const lines = [make("p", `With ${what} ${done}, ${said}: ${asked.length === 1 ? "log p" : "it"} ${drop < 0 ? "rises" : "falls"} by ${number(Math.abs(drop))}.${moved}`)];
    if (promised.length) lines.push(make("p", `The scores had given it ${promised.map(({ share, score }, at) => `${score < 0 ? "−" : ""}${percent(share)} (${methods[at]})`).join(", ")}.`, { class: "hint" }));
    if (tokens) {
      const bar = value => make("td", "", {}, make("span", "", { class: "likely", style: `--p:${value}` }, make("i")), make("span", percent(value)));
      const rows = tokens.map(row => make("tr", "", row.target ? { class: "target" } : {}, make("td", row.text.trim() ? row.text.replace(/\n/g, "↵") : row.text.replace(/\n/g, "↵").replace(/ /g, "·") || "∅"), bar(row.before), bar(row.after)));
      lines.push(make("table", "", {}, make("thead", "", {}, make("tr", "", {}, ...["next token", "before", "after"].map(name => make("th", name, { scope: "col" })))), make("tbody", "", {}, ...rows)));
    }
    $("#outcome").replaceChildren(...lines);
  };

  // ---------------------------------------------------------------------------------------------------- other targets
  /** A word as it would be written here: after a space, if what is explained is. */
  const spaced = text => {
    const here = state.written[state.at]?.text, end = typeof state.prompt === "string" ? state.prompt.slice(-1) : "\n";
    const space = here === undefined ? state.written.length > 0 || /\S/.test(end) : here.startsWith(" ");
    return space && /^\p{L}/u.test(text) ? ` ${text}` : text;
  };
  const [other, activation] = $$("#target form");
  other.onsubmit = event => {
    event.preventDefault();
    const { text, against } = other.elements;
    ask(state.at, text.value ? { text: spaced(text.value), against: against.value ? spaced(against.value) : null } : null);
  };
  activation.onsubmit = async event => {
    event.preventDefault();
    const { hook, head, index, direction } = activation.elements, [file] = direction.files;
    const whole = box => box.value === "" ? null : +box.value;
    const bytes = file && new Uint8Array(await file.arrayBuffer());
    const packed = bytes ? btoa(Array.from(bytes, byte => String.fromCharCode(byte)).join("")) : null;
    ask(state.at, { hook: hook.value, head: whole(head), index: whole(index), direction: packed });
  };

  // ---------------------------------------------------------------------------------------------------------- history
  const listHistory = async () => {
    const known = await fetch("history").then(reply => reply.json()).catch(() => say(GONE, true)) ?? [];
    $("#history ul").replaceChildren(...known.map(({ number, at, title, prompt }) => {
      const entry = make("button", title, { type: "button" });
      entry.append(" ", make("small", `${prompt} · ${at} UTC`));
      entry.onclick = () => instead(async signal => {
        for await (const told of lines(`history/${number}`, {}, signal)) restore(told);
      });
      return make("li", "", {}, entry);
    }));
  };
  const restore = told => {
    const { prompt, written, at, target } = told.question, chat = typeof prompt !== "string";
    Object.assign(state, { mode: chat ? "chat" : "text", messages: chat ? structuredClone(prompt) : [{ role: "user", content: prompt }], prompt, at, target, methods: [told.method], shown: told.method });
    state.written = written.map((token, place) => ({ token, text: told.texts[place] }));
    found.clear();
    found.set(told.method, { ...told, whole: true, seconds: 0 });
    drawPrompt();
    drawAnswer();
    $("#why").hidden = false;
    $("#what-if").hidden = at === null;
    choose([], "");
    show(told.method);
  };

  // ------------------------------------------------------------------------------------------------------------ begin
  $("#ask").onsubmit = event => { event.preventDefault(); generate(); };
  $("#next").onclick = () => {
    if (!current() || !state.written.length) begin(structuredClone(promptNow()));
    ask(state.written.length);
  };
  $("#stop").onclick = () => {
    working.abort();
    $("#stop").hidden = true;
    running = new Set();
    if (!$("#why").hidden) drawTabs();
    say("stopped");
  };
  $("#mode").hidden = !facts.chat;
  $$("[name=mode]").forEach(box => { box.onchange = () => { state.mode = box.value; drawPrompt(); save(); }; });
  facts.hooks.forEach(name => $("#hooks").append(new Option(name)));
  fields.layer.max = facts.layers - 1;
  if (facts.history) {
    $("#history").hidden = false;
    $("#history").ontoggle = () => $("#history").open && listHistory();
    $("#history > button").onclick = async () => { if (confirm("Forget all explanations in this file?")) await fetch("history", { method: "DELETE" }); listHistory(); };
  }
  Object.assign(state, JSON.parse(sessionStorage.getItem(location.pathname) ?? "{}"));
  $("#tokens").value = state.tokens;
  drawPrompt();
  drawAnswer();
  choose([], "");
  if (state.at !== undefined && state.prompt !== null) explain(state.methods, null, false);
})();
