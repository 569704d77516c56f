(() => {
  const { nonce } = document.currentScript;
  const facts = JSON.parse(document.getElementById("facts").textContent);
  const $ = name => document.querySelector(name), $$ = name => [...document.querySelectorAll(name)];
  const number = value => Math.abs(value) < .001 ? "less than 0.001" : Number(value.toPrecision(3)).toString().replace("-", "−");
  const visible = text => text.trim() ? text.replace(/\n/g, "↵") : text.replace(/\n/g, "↵").replace(/ /g, "␣") || "∅";
  const quoted = text => `“${text.trim() || text}”`;

  /** The question, which a reload restores with the ``entries`` of the history and what was tested; ``explanations`` has the results by method. */
  const state = { entries: {}, mode: "text", messages: [{ role: "user", content: "" }], written: [], prompt: null, at: undefined, target: null, methods: [...facts.first], shown: facts.first[0], tokens: 20, pinned: { positions: [], text: "", last: -1 }, outcome: null, circuit: null };
  const explanations = new Map(), later = new Map(), patient = new Set();  // the seconds of methods that wait for a click, and those clicked
  let request = new AbortController(), running = new Set();
  const save = () => sessionStorage.setItem(location.pathname, JSON.stringify(state));

  // -------------------------------------------------------------------------------------------------------- the server
  const READING = "The model reads the prompt …";
  const GONE = "The server does not respond. Start the app again, and open the address in the terminal.";
  const OTHER = "This address belongs to an earlier start of the app. Open the address in the terminal.";
  /** Post a request, and yield the messages of the response; throw the error that the server sends. */
  async function* post(path, body, signal) {
    let response;
    try {
      response = await fetch(path, { method: "POST", body: JSON.stringify(body), signal });
    } catch (error) {
      if (error.name === "AbortError") return;
      throw new Error(GONE);
    }
    if (response.status === 404) throw new Error(OTHER);
    if (!response.ok) throw new Error((await response.json().catch(() => null))?.error ?? `The server responds with status ${response.status}.`);
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
      for (const message of complete.map(line => JSON.parse(line))) {
        if (message.error && !message.method) throw new Error(message.error);
        yield message;
      }
    }
  }
  const say = (text, error = false, live = "polite") => {
    $("#says").setAttribute("aria-live", live);  // screen readers skip progress
    $("#says").textContent = text;
    $("#says").classList.toggle("error", error);
  };
  /** Cancel the request in progress, and start another; return false if a later one has replaced it. */
  const start = async work => {
    request.abort();
    const own = request = new AbortController();
    $("#stop").hidden = false;
    say("");
    try {
      await work(own.signal);
    } catch (error) {
      if (own === request) say(error.message, true);
    }
    if (own !== request) return false;
    $("#stop").hidden = true;
    running = new Set();
    if (!$("#why").hidden) drawTabs();
    return !own.signal.aborted;
  };

  // -------------------------------------------------------------------------------------------------------- the prompt
  const drawPrompt = () => {
    drawHint();
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
      role.onchange = () => { message.role = role.value; save(); drawHint(); };
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
  /** Set the prompt, and clear the answer and its explanations. */
  const begin = prompt => {
    Object.assign(state, { prompt, written: [], at: undefined, target: null, entries: {} });
    explanations.clear();
    later.clear();
    patient.clear();
    $("#view").replaceChildren();
    $("#files").replaceChildren();
    pin([], "");
    for (const name of ["#answer", "#why", "#what-if"]) $(name).hidden = true;
    save();
  };
  const generate = () => start(async signal => {
    const prompt = structuredClone(promptNow());
    let begun = false;
    state.tokens = +$("#tokens").value;
    say(READING, false, "off");
    for await (const { token, text } of post("write", { prompt, tokens: state.tokens }, signal)) {
      if (!begun) {
        begin(prompt);
        say("");
      }
      begun = true;
      state.written.push({ token, text });
      drawAnswer();
    }
    save();
  });

  // -------------------------------------------------------------------------------------------------------- the answer
  const unchanged = () => JSON.stringify(state.prompt) === JSON.stringify(promptNow());
  const drawHint = () => {
    $("#answer .hint").textContent = unchanged() ? "Click a word to see which tokens made it." : "The prompt has changed since this answer. Generate again to update the answer.";
  };
  const drawAnswer = () => {
    drawHint();
    $("#answer").hidden = !state.written.length;
    const buttons = state.written.map(({ text }, at) => {
      const button = make("button", visible(text), { type: "button", "aria-pressed": String(state.at === at) });
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
  /** The question and its results, to return to if the next question is refused. */
  const snapshot = () => {
    const { prompt, written, at, target, entries, shown } = state;
    return { question: { prompt, written, at, target, entries, shown }, results: [...explanations] };
  };
  /** Explain a token of the answer by its index, the next token by the answer's length, or all tokens by null. */
  const ask = (at, target = null, before = snapshot()) => {
    later.clear();
    patient.clear();
    Object.assign(state, { at, target, entries: {}, shown: state.methods[0] });
    explanations.clear();
    pin([], "");
    drawAnswer();
    explain(state.methods, before);
  };
  /** Explain by methods, `fast` first because it is one pass, and HETA last because it is slow; after an error, show the explanations from before again. */
  const explain = (methods, before = null) => start(async signal => {
    const turn = name => (name === "heta") - (name === "fast");
    methods = [...new Set(methods)].sort((one, other) => turn(one) - turn(other));
    running = new Set(methods);
    methods.forEach(name => later.delete(name));
    save();
    $("#why").hidden = false;
    drawForms();
    $("#view").classList.toggle("stale", !explanations.has(state.shown) && state.shown !== "compared");
    drawTabs();
    say(READING, false, "off");
    const chosen = state.shown;
    try {
      await receive({ question: question(), methods, patient: [...patient] }, signal);
      if (signal.aborted) return;
      say("");
    } catch (error) {
      if (!explanations.size && !later.size && before) {
        Object.assign(state, before.question);
        before.results.forEach(([name, result]) => explanations.set(name, result));
        $("#why").hidden = !explanations.size;
        drawAnswer();
        if (explanations.size) show(explanations.has(state.shown) ? state.shown : ordered()[0]);
        save();
      }
      throw error;
    } finally {
      if (!signal.aborted) settle(chosen);
    }
  });
  /** Show what is there, if the chosen method is not; say how long it takes if it waits for a click. */
  const settle = chosen => {
    if (!explanations.has(state.shown) && state.shown !== "compared" && explanations.size) show(ordered()[0]);
    if (later.has(chosen)) say(`${chosen} takes about ${wait(later.get(chosen))}: click its tab to start.`);
    if (!explanations.size && later.size) {
      $("#view").replaceChildren();
      $("#files").replaceChildren();
    }
    drawForms();
    if ($("#history").open) listHistory();
  };
  const ordered = () => state.methods.filter(name => explanations.has(name));
  /** Draw what arrives; after all methods, throw what those that failed said. */
  const receive = async (body, signal) => {
    const refusals = new Map();
    for await (const message of post("explain", body, signal)) {
      const { method, html, whole, waiting, done, runs, entry, error, later: seconds } = message;
      if (error) {
        refusals.set(error, [...refusals.get(error) ?? [], method]);
        running.delete(method);
        drawTabs();
        continue;
      }
      if (seconds) {
        later.set(method, seconds);
        running.delete(method);
        drawTabs();
      } else if (!html) say(`${method}: ${waiting ? "waiting for the model" : done === null ? `${runs} ${runs === 1 ? "run" : "runs"}` : percent(done)}`, false, "off");
      else if (state.methods.includes(method)) {
        explanations.set(method, message);
        if (entry) state.entries[method] = entry;
        save();
        if (whole) running.delete(method);
        if (method === state.shown) show(method);
        else {
          drawTabs();
          if (explanations.size === 1) draw(message);  // until that of the chosen method is there
        }
        say(whole ? "" : `${method}: from few probes; the error bars will shrink`);
      }
    }
    const every = [...refusals].map(([error, own]) => own.length === body.methods.length ? error : `${own.join(", ")}: ${error}`);
    if (every.length) throw new Error(every.join(" "));
  };
  const show = name => {
    state.shown = name;
    drawTabs();
    draw(explanations.get(name));
    save();
  };
  /** Insert a view, and return links to its files; a script that is inserted as text runs only in a new element. */
  const insert = (place, { html, result, files }) => {
    place.innerHTML = html;
    for (const old of place.querySelectorAll("script:not([type])")) {
      const script = make("script", old.textContent);
      script.nonce = nonce;
      old.replaceWith(script);
    }
    return ["Save as", ...files.map(suffix => {
      const link = make("a", { ".html": "page", ".tex": "LaTeX" }[suffix] ?? suffix.slice(1).toUpperCase(), { href: `files/${result}${suffix}` });
      link.onclick = event => { event.preventDefault(); download(link.href); };
      return link;
    })];
  };
  const download = async address => {
    const reply = await fetch(address).catch(() => null);
    if (!reply?.ok) return say(reply ? await reply.text() : GONE, true);
    const [, name] = reply.headers.get("content-disposition").match(/filename="(.*)"/);
    const link = make("a", "", { href: URL.createObjectURL(await reply.blob()), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  };
  const draw = message => {
    $("#view").classList.remove("stale");
    $("#files").replaceChildren(...insert($("#view"), message));
  };
  const wait = seconds => seconds < 100 ? `${Math.ceil(seconds / 5) * 5} s` : seconds < 5400 ? `${Math.ceil(seconds / 60)} min` : `${Math.ceil(seconds / 3600)} hours`;
  const drop = name => {
    state.methods = state.methods.filter(other => other !== name);
    explanations.delete(name);
    delete state.entries[name];
    if (state.shown === name) {  // of another, the view stays as it is
      [state.shown] = [...ordered(), ...state.methods];
      if (explanations.size) draw(explanations.get(state.shown));
    }
    drawTabs();
    save();
  };
  const drawTabs = () => {
    const tabs = state.methods.map(name => {
      const known = explanations.get(name), tab = make("button", name, { type: "button", "aria-pressed": String(state.shown === name) });
      const waits = later.has(name) ? `takes about ${wait(later.get(name))}` : known ? "" : "not run";
      const status = running.has(name) ? known ? "few probes …" : "…" : known?.whole ? "" : [known && "few probes", waits].filter(Boolean).join(", ");
      tab.append(" ", make("small", [known?.seconds && `${known.seconds.toFixed(1)} s`, status].filter(Boolean).join(" · ")));
      tab.disabled = !known && running.has(name);
      tab.onclick = () => {
        if (known) show(name);
        else state.shown = name;
        if (later.has(name)) patient.add(name);
        if (!known?.whole && !running.has(name)) explain([name, ...running]);
      };
      if (state.methods.length === 1) return make("span", "", {}, tab);
      const close = make("button", "✕", { type: "button", class: "close", "aria-label": `without ${name}` });
      close.onclick = () => {
        const shown = state.shown === name;
        drop(name);
        if (shown && !explanations.size) explain(state.methods);
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
      state.methods.push(more.value);
      state.shown = more.value;
      explain([more.value, ...running]);
    };
    const compare = make("button", "Compare", { type: "button", "aria-pressed": String(state.shown === "compared") });
    compare.disabled = explanations.size < 2;
    compare.onclick = async () => {
      const others = [...running];
      const ended = await start(async signal => {
        for await (const message of post("compare", { results: ordered().map(name => explanations.get(name).result) }, signal)) {
          state.shown = "compared";
          drawTabs();
          draw(message);
        }
      });
      if (ended && others.length) explain(others);
    };
    const inTabs = () => $$(".tabs button, .tabs select"), focused = inTabs().indexOf(document.activeElement);
    $(".tabs").replaceChildren(...tabs, more, compare);
    inTabs()[focused]?.focus();
  };

  // -------------------------------------------------------------------------------------------------------- what if
  const form = $("#what-if form"), fields = form.elements;
  const clearOutcome = () => {
    $("#outcome").replaceChildren();
    state.outcome = null;
  };
  const pin = (positions, text, last = -1) => {
    Object.assign(state, { pinned: { positions, text, last }, circuit: null });
    $("#pinned").textContent = positions.length ? `If ${text} at ${positions.length > 1 ? `${positions[0]}–${positions.at(-1)}` : positions[0]} …` : form.hidden ? "Click a single token of the answer to ask what would change it." : "Click a token of the prompt above, and choose what happens to it.";
    form.querySelectorAll("button").forEach(button => { button.disabled = !positions.length; });
    $("#through").disabled ||= positions.includes(last);  // from there the prediction is read
    howButton();
    $("#circuit").replaceChildren();
    if (!positions.length) clearOutcome();
  };
  $("#view").addEventListener("heta-lens-pin", ({ detail }) => {
    if (state.at === null) return;
    pin(detail.positions, detail.text, detail.last);
    save();
  });
  fields.how.onchange = () => {
    form.querySelectorAll("[data-for]").forEach(field => { field.hidden = field.dataset.for !== fields.how.value; });
    clearOutcome();
    save();
  };
  /** What was done to the token, in words. */
  const PARTICIPLES = {
    mask: () => "masked by zeros", delete: () => "deleted", resample: () => "drawn again by the model", replace: () => `replaced by ${quoted(fields.text.value)}`,
    patch: () => `patched at layer ${+fields.layer.value} from ${quoted(clip(fields.counterfactual.value, 40))}`,
  };
  /** Offer to find the components that carry the pinned tokens; after ``seconds`` are announced, a click begins the wait. */
  const howButton = (seconds = 0) => {
    const button = $("#through");
    button.textContent = seconds ? `How does it get there? takes about ${wait(seconds)}: click again to start` : "How does it get there? (masked)";
    button.onclick = () => {
      const unfinished = [...running];
      start(signal => findComponents(state.pinned.positions, seconds > 0, signal).catch(error => $("#circuit").replaceChildren(make("p", error.message, { class: "error" })))).then(alone => { if (alone && unfinished.length) explain(unfinished); });
    };
  };
  const findComponents = async (positions, patient, signal) => {
    for await (const message of post("components", { question: question(), positions, patient }, signal)) {
      if (positions !== state.pinned.positions) return;
      if (message.later) howButton(message.later);
      else if (!message.html) say(`components: ${message.waiting ? "waiting for the model" : percent(message.done)}`, false, "off");
      else {
        state.circuit = message;
        drawCircuit();
        save();
        say("");
      }
    }
  };
  const drawCircuit = () => {
    const links = insert($("#circuit"), state.circuit);
    $("#circuit").append(make("div", "", { class: "row hint" }, ...links));
    howButton();
  };
  form.onsubmit = async event => {
    event.preventDefault();
    const { positions, text } = state.pinned, how = fields.how.value, done = `With ${text} ${PARTICIPLES[how]()}`;
    const last = fields.counterfactual.value, counterfactual = typeof state.prompt === "string" ? last : [...state.prompt.slice(0, -1), { ...state.prompt.at(-1), content: last }];
    const methods = ordered(), results = methods.map(name => explanations.get(name).result), unfinished = [...running];
    const change = { positions, how, text: fields.text.value, counterfactual, layer: +fields.layer.value, results };
    const alone = await start(async signal => {
      $("#outcome").replaceChildren("…");
      try {
        for await (const effect of post("change", { question: question(), change }, signal)) {
          state.outcome = [effect, done, methods];
          drawOutcome(...state.outcome);
          save();
        }
      } catch (error) {
        $("#outcome").replaceChildren(make("p", error.message, { class: "error" }));
      }
      if (signal.aborted && signal === request.signal) $("#outcome").replaceChildren();  // not if a later one runs
    });
    if (alone && unfinished.length) explain(unfinished);
  };
  const drawOutcome = ({ before, after, drop, kl, tokens, target, scores }, done, methods) => {
    const targets = tokens?.filter(row => row.target) ?? [], alone = targets.length === 1;
    const effect = alone ? `${quoted(targets[0].text)} goes from ${percent(targets[0].before)} to ${percent(targets[0].after)}` : `${target} goes from ${number(before)} to ${number(after)}`;
    const fall = `${alone ? "log p" : "it"} ${drop < 0 ? "rises" : "falls"} by ${number(Math.abs(drop))}.`;
    const divergence = kl === undefined ? "" : ` The whole prediction moves by ${number(kl)} nats (KL).`;
    $("#outcome").replaceChildren(make("p", `${done}, ${effect}: ${fall}${divergence}`));
    const shares = scores.map(({ share, score }, at) => `${score < 0 ? "−" : ""}${percent(share)} (${methods[at]})`);
    if (shares.length) $("#outcome").append(make("p", `Share of the scores: ${shares.join(", ")}.`, { class: "hint" }));
    if (!tokens) return;
    const bar = value => make("td", "", {}, make("span", "", { class: "likely", style: `--p:${value}` }, make("i")), make("span", percent(value)));
    const head = ["next token", "before", "after"].map(name => make("th", name, { scope: "col" }));
    const rows = tokens.map(row => make("tr", "", row.target ? { class: "target" } : {}, make("td", visible(row.text)), bar(row.before), bar(row.after)));
    $("#outcome").append(make("table", "", {}, make("thead", "", {}, make("tr", "", {}, ...head)), make("tbody", "", {}, ...rows)));
  };

  // ---------------------------------------------------------------------------------------------------- other targets
  /** A word with a leading space, if the explained token has one. */
  const spaced = text => {
    const here = state.written[state.at]?.text, end = typeof state.prompt === "string" ? state.prompt.slice(-1) : "\n";
    const space = here === undefined ? state.written.length > 0 || /\S/.test(end) : here.startsWith(" ");
    return space && /^\p{L}/u.test(text) ? ` ${text}` : text;
  };
  const [other, activation, options] = $$("#target form");
  options.onsubmit = async event => {
    event.preventDefault();
    const method = options.elements.method.value.trim(), added = !state.methods.includes(method);
    if (added) state.methods.push(method);
    state.shown = method;
    if (await explain([method, ...running]) && added && !explanations.has(method) && !later.has(method)) drop(method);
  };
  other.onsubmit = event => {
    event.preventDefault();
    const { text, against } = other.elements, wanted = text.value ? spaced(text.value) : state.written[state.at]?.text;
    if (against.value && !wanted) return say("Write the other token too: the answer has none at this position.", true);
    ask(state.at, text.value || against.value ? { text: wanted, against: against.value ? spaced(against.value) : null } : null);
  };
  activation.onsubmit = async event => {
    event.preventDefault();
    const { hook, head, index, direction } = activation.elements, [file] = direction.files;
    const whole = box => box.value === "" ? null : +box.value;
    const bytes = file && new Uint8Array(await file.arrayBuffer());
    const packed = bytes ? btoa(Array.from(bytes, byte => String.fromCharCode(byte)).join("")) : null;
    ask(state.at, { hook: hook.value, head: whole(head), index: whole(index), direction: packed });
  };

  /** A whole answer has no single position at which to change the prompt or to explain another token. */
  const drawForms = () => {
    $("#what-if").hidden = false;
    form.hidden = other.hidden = state.at === null;
    if (!state.pinned.positions.length) pin([], "");  // the hint depends on what is explained
  };

  // ---------------------------------------------------------------------------------------------------------- history
  const listHistory = async () => {
    const entries = await fetch("history").then(reply => reply.json()).catch(() => say(GONE, true)) ?? [];
    $("#history ul").replaceChildren(...entries.map(({ number, time, title, prompt }) => {
      const entry = make("button", title, { type: "button" });
      entry.append(" ", make("small", `${prompt} · ${time} UTC`));
      entry.onclick = () => start(async signal => {
        for await (const message of post(`history/${number}`, {}, signal)) restore(message, number);
      });
      return make("li", "", {}, entry);
    }));
  };
  const restore = (message, entry) => {
    const { method, texts, question: { prompt, written, at, target } } = message, chat = typeof prompt !== "string";
    Object.assign(state, { mode: chat ? "chat" : "text", messages: chat ? structuredClone(prompt) : [{ role: "user", content: prompt }], prompt, at, target });
    state.methods = [...new Set([...state.methods, method])];
    state.entries = { [method]: entry };
    state.written = written.map((token, place) => ({ token, text: texts[place] }));
    explanations.clear();
    later.clear();
    patient.clear();
    explanations.set(method, { ...message, whole: true });
    drawPrompt();
    drawAnswer();
    $("#why").hidden = false;
    pin([], "");
    drawForms();
    show(method);
  };

  // ------------------------------------------------------------------------------------------------------- first state
  const fill = text => {
    state.messages = [{ role: "user", content: text }];
    say("");
    drawPrompt();
    save();
  };
  $("#example").onclick = () => fill(state.mode === "chat" ? facts.example.split("\nAnswer:")[0] : facts.example);
  $("#file").onchange = async ({ target: { files: [file] } }) => { if (file) fill(await file.text()); };
  $("#ask").onsubmit = event => { event.preventDefault(); generate(); };
  $("#next").onclick = () => {
    const before = snapshot();
    if (!unchanged()) begin(structuredClone(promptNow()));
    ask(0, null, before);
  };
  $("#stop").onclick = () => {
    request.abort();
    say("stopped");
  };
  $("#mode").hidden = !facts.chat;
  $$("[name=mode]").forEach(box => { box.onchange = () => { state.mode = box.value; drawPrompt(); save(); }; });
  facts.hooks.forEach(name => $("#hooks").append(new Option(name)));
  fields.layer.max = facts.layers - 1;
  $("#history").ontoggle = () => $("#history").open && listHistory();
  $("#history > button").onclick = async () => { if (confirm("Delete all explanations in the history?")) { await fetch("history", { method: "DELETE" }); state.entries = {}; save(); } listHistory(); };
  Object.assign(state, JSON.parse(sessionStorage.getItem(location.pathname) ?? "{}"));
  const { pinned, outcome, circuit } = state;  // a new view has none
  $("#tokens").value = state.tokens;
  drawPrompt();
  drawAnswer();
  pin([], "");
  const finished = Object.entries(state.entries);
  if (state.at !== undefined && state.prompt !== null && !finished.length) explain(state.methods);
  else if (finished.length) start(async signal => {
    $("#why").hidden = false;
    drawForms();
    for (const [method, entry] of finished) {
      for await (const message of post(`history/${entry}`, {}, signal)) explanations.set(method, { ...message, whole: true });
    }
    show(explanations.has(state.shown) ? state.shown : finished[0][0]);
    if (!pinned.positions.length) return;
    pin(pinned.positions, pinned.text, pinned.last);
    Object.assign(state, { outcome, circuit });
    if (state.outcome) drawOutcome(...state.outcome);
    if (state.circuit) drawCircuit();
    save();
  });
})();
