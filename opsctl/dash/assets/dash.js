"use strict";
(() => {
  const root = document.documentElement, base = root.dataset.base, staleAfter = Number(root.dataset.stale);
  const find = (selector) => document.querySelector(selector);
  const all = (selector) => [...document.querySelectorAll(selector)];

  // --- live updates: the server names the version, the page fetches itself and swaps what has changed
  // version and madeAt are those of the shown page: a failed update changes neither, and the next event tries again.
  let version = Number(root.dataset.version), madeAt = null, isLost = false, isGone = false;
  let news = null, isUpdating = false;

  function describeAge(seconds) {
    for (const [size, unit, length] of [[172800, "d", 86400], [7200, "h", 3600], [90, "min", 60]])
      if (seconds >= size) return `${Math.round(seconds / length)} ${unit}`;
    return `${Math.round(seconds)} s`;
  }

  function showAge() {
    const place = find("#fresh"), banner = find("#stale");
    if (!place || madeAt === null) return;
    const age = (Date.now() - madeAt) / 1000, isStale = isGone || age > staleAfter;
    place.textContent = `${isLost ? "connection lost · " : ""}data ${describeAge(age)} old`;
    place.parentElement.classList.toggle("stale", isStale || isLost);
    document.body.classList.toggle("stale-page", isStale);
    if (banner) {
      banner.hidden = !isStale;
      const why = isGone ? "This train is gone: its run directory no longer exists." : `This page is ${describeAge(age)} old.`;
      banner.textContent = `${why} Nothing below is current.`;
    }
  }

  async function update() {
    if (isUpdating) return; // over a slow line, a later answer could come first
    isUpdating = true;
    const shown = version, made = news?.madeAt;
    try {
      await swapParts();
      madeAt = made ?? madeAt;
    } catch { /* no answer: the age shows that nothing was updated */ }
    isUpdating = false;
    showAge();
    if (shown !== version && news && news.version !== version) setTimeout(update, 1000);
  }

  async function swapParts() {
    const query = new URLSearchParams(location.search);
    query.set("part", "1");
    const answer = await fetch(`${location.pathname}?${query}`, { signal: AbortSignal.timeout(60000) });
    if (answer.status === 401) location.reload();
    isGone = answer.status === 404;
    if (!answer.ok) throw new Error(answer.statusText);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of page.querySelectorAll("[data-live]")) {
      const old = document.getElementById(part.id);
      if (old && part.tagName === "DETAILS") part.open = old.open;
      for (const inner of part.querySelectorAll("details[id]")) inner.open = Boolean(document.getElementById(inner.id)?.open);
      if (old && old.outerHTML !== part.outerHTML) old.replaceWith(document.importNode(part, true));
    }
    document.title = page.title;
    version = Number(page.documentElement.dataset.version);
    document.dispatchEvent(new Event("opsctl:swapped"));
    if (logMode === "end") loadLog("");
  }

  if (innerWidth <= 700) for (const panel of all("details.panel")) panel.open = false;

  function listen() {
    const events = new EventSource(`${base}/events`);
    events.onmessage = (event) => {
      const { version: newest, age } = JSON.parse(event.data);
      news = { version: newest, madeAt: Date.now() - 1000 * (age ?? 0) };
      if (isLost) version = -1; // a server that has started again counts from 0
      isLost = false;
      if (newest === version || madeAt === null) madeAt = news.madeAt;
      // Not all viewers at the same moment.
      if (newest !== version) setTimeout(update, 1500 * Math.random());
      showAge();
    };
    events.onerror = () => {
      isLost = true;
      showAge();
      // Browsers give up after an answer that is no stream, such as the error of a proxy while the server starts.
      if (events.readyState === EventSource.CLOSED) setTimeout(() => { update(); listen(); }, 2000 + 3000 * Math.random());
    };
  }

  if (root.dataset.live) {
    listen();
    setInterval(showAge, 1000);
  }

  // --- actions: the plan first where something is stopped or started, then the confirmation
  let csrf = "", questions = 0;
  const dialog = find("#act");

  async function ask(instruction) {
    try {
      return await send(instruction);
    } catch {
      return { error: "opsctl dash did not answer, so the result is unknown. Load the page again.", isUnknown: true };
    }
  }

  async function send(instruction) {
    if (!csrf) await readSession();
    const before = csrf;
    let answer = await post(instruction);
    if (answer.status === 403) {
      await readSession();
      if (csrf !== before) answer = await post(instruction); // another tab has changed the session; nothing was done
    }
    const result = await answer.json();
    return answer.ok ? result : { error: [result.error, result.hint].filter(Boolean).join(" · ") };
  }

  async function readSession() {
    const answer = await fetch(`${base}/session`);
    csrf = answer.ok ? (await answer.json()).csrf : "";
  }

  function post(instruction) {
    return fetch(`${base}/act`, {
      method: "POST", body: JSON.stringify(instruction),
      headers: { "Content-Type": "application/json", "X-CSRF-Token": csrf },
    });
  }

  // Stages: "plan" asks what would be done, "confirm" and "sure" are the confirmations.
  function openDialog(button) {
    const { verb, train, effect, asks } = button.dataset, keys = button.dataset.keys.split("\n");
    const label = button.textContent.replace("…", ""), needsPlan = Boolean(button.dataset.confirm);
    const go = find("#act-go"), text = find("#act-text"), number = find("#act-number");
    const names = { plan: "Show the plan", confirm: label, sure: `Yes: ${label.toLowerCase()}, ${train}` };
    let stage = "confirm";

    function say(message, isError) {
      text.textContent = message;
      text.className = isError ? "tone-red word" : "";
    }

    function enter(next) {
      stage = next;
      go.textContent = names[next];
      go.classList.toggle("danger", next === "sure");
    }

    function makeInstruction() {
      const instruction = { verb, train, key: keys[0] };
      if (asks && number.value !== "") instruction.number = Number(number.value);
      return instruction;
    }

    async function showPlan() {
      const question = ++questions;
      go.disabled = true;
      say("Asking what would be done …");
      const plan = await ask(makeInstruction());
      if (question !== questions) return; // another dialog or number meanwhile
      if (plan.error) {
        say(plan.error, true);
        enter("plan");
        go.disabled = !asks;
        return;
      }
      if (plan.number !== undefined) number.value = plan.number;
      say(plan.text + (plan.text.includes("\n") ? "\n" : ". ") + effect);
      enter("confirm");
      go.disabled = false;
    }

    async function carryOut() {
      const question = ++questions;
      go.disabled = number.disabled = true;
      const reason = find("#act-reason").value, person = find("#act-person").value;
      let result = {};
      for (const key of keys) {
        result = await ask({ ...makeInstruction(), train: keys.length > 1 ? "" : train, key, reason, person, confirmed: true });
        if (result.error) break;
      }
      if (question !== questions) return; // another dialog meanwhile
      text.textContent = result.error || result.text;
      text.className = result.error ? "tone-red word" : "tone-green word";
      go.hidden = !result.error || Boolean(result.isUnknown);
      go.disabled = number.disabled = false;
      find("#act-cancel").textContent = result.error ? "Cancel" : "Close";
    }

    questions += 1; // a late answer belongs to an earlier dialog
    find("#act-title").textContent = [label, train || keys[0]].join(" · ");
    find("#act-reason").value = "";
    find("#act-number-field").hidden = !asks;
    find("#act-number-name").textContent = asks || "";
    number.value = button.dataset.number || "";
    number.disabled = false;
    number.oninput = () => { questions += 1; enter("plan"); go.disabled = false; };
    say([effect, keys.join(", ")].join(" "));
    enter("confirm");
    go.hidden = go.disabled = false;
    find("#act-cancel").textContent = "Cancel";
    go.onclick = () => {
      if (stage === "plan") showPlan();
      else if (stage === "confirm" && button.dataset.twice) enter("sure");
      else carryOut();
    };
    dialog.showModal();
    if (needsPlan) showPlan();
  }

  if (dialog) document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-verb]");
    if (button) openDialog(button);
  });

  // --- the log
  let logMode = "", logRequests = 0;
  const log = find("#log");

  async function loadLog(query, mode) {
    const request = ++logRequests;
    const answer = await fetch(`${location.pathname}/log?${query}`).catch(() => ({ ok: false }));
    if (request !== logRequests) return; // a later one was sent meanwhile
    if (!answer.ok) { find("#log-title").textContent = "The log cannot be read."; return; }
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (request !== logRequests) return;
    const lines = page.querySelector("[data-title]");
    const isAtEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 40;
    find("#log-title").textContent = lines.dataset.title;
    log.replaceChildren(...[...lines.children].map((line) => document.importNode(line, true)));
    const hit = find("#log-hit");
    if (hit) log.scrollTop = hit.offsetTop - log.offsetTop - 60;
    else if (isAtEnd || mode) log.scrollTop = log.scrollHeight;
    if (mode) logMode = mode;
  }

  if (log) {
    find("#log-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const text = find("#log-query").value.trim();
      if (text) loadLog(new URLSearchParams({ q: text }), "search"); else loadLog("", "end");
    });
    document.addEventListener("click", (event) => {
      const button = event.target.closest("button[data-attempt]");
      if (!button) return;
      loadLog(new URLSearchParams({ attempt: button.dataset.attempt }), "attempt");
      find("#log-panel").scrollIntoView({ behavior: "smooth" });
    });
    find("#log-error").addEventListener("click", () => loadLog("first-error=1", "error"));
    find("#log-end").addEventListener("click", () => loadLog("", "end"));
    loadLog("", "end");
  }
})();
