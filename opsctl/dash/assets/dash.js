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
    drawCharts();
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

  // --- curves: one resolution over the whole run; single steps only where the zoom shows nothing else
  let charts = [], drawn = "", zoom = null;
  const colour = (name) => getComputedStyle(document.body).getPropertyValue(name).trim();
  const MARK_COLOURS = { alert: "--red", end: "--red", restart: "--soft", held: "--amber", "rolled back": "--hang", "node excluded": "--hardware" };
  const full = (value) => (value === null ? "" : Number(value.toPrecision(6)).toLocaleString("en", { maximumFractionDigits: 6 }));

  function splitLog(min, max) {
    const ticks = [];
    for (let power = 10 ** Math.floor(Math.log10(min)); power <= max; power *= 10)
      for (const digit of [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8]) if (digit * power >= min && digit * power <= max) ticks.push(digit * power);
    return ticks.length > 9 ? ticks.filter((tick) => [1, 2, 5].some((digit) => Math.abs(Math.log10(tick / digit) % 1) < 1e-9)) : ticks;
  }

  function drawMarks(marks) {
    return (chart) => {
      const { ctx, bbox } = chart;
      let free = -Infinity;
      ctx.save();
      ctx.lineWidth = devicePixelRatio;
      ctx.textAlign = "left";
      ctx.textBaseline = "alphabetic";
      ctx.font = `${11 * devicePixelRatio}px system-ui`;
      for (const [step, kind, , , label] of marks) {
        const x = Math.round(chart.valToPos(step, "x", true));
        if (x < bbox.left || x > bbox.left + bbox.width) continue;
        ctx.strokeStyle = ctx.fillStyle = colour(MARK_COLOURS[kind] || "--blue");
        ctx.setLineDash([4, 3]);
        ctx.beginPath();
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
        if (!label || x < free) continue;
        ctx.save();
        ctx.translate(x + (x > bbox.left + bbox.width - 16 * devicePixelRatio ? -12 : 4) * devicePixelRatio, bbox.top + 4 * devicePixelRatio);
        ctx.rotate(Math.PI / 2);
        ctx.fillText(label, 0, 0);
        ctx.restore();
        free = x + 15 * devicePixelRatio;
      }
      ctx.restore();
    };
  }

  function showMark(marks) {
    return (chart) => {
      const left = chart.cursor.left, note = find("#mark-note");
      const near = left < 0 ? [] : marks.filter((mark) => Math.abs(chart.valToPos(mark[0], "x") - left) < 6);
      note.textContent = near.map(([step, , text, at]) => `step ${Math.round(step).toLocaleString("en")}, ${at}: ${text}`).join("  ·  ");
    };
  }

  function showLatest(chart) {
    if (chart.cursor.idx === null || chart.cursor.idx === undefined) chart.setLegend({ idx: chart.data[0].length - 1 }, false);
  }

  function isWithin(range, columns) {
    return columns.length > 0 && columns[0].length > 1 && range.min >= columns[0][0];
  }

  function makeChart(place, parts, label, stroke, marks, isLog) {
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    const number = (_, value) => (value === null || value === undefined ? "unknown" : full(Number(value.toPrecision(5))));
    const { bins, raw } = parts;
    let isRaw = false;
    return new uPlot({
      width: place.clientWidth, height: innerWidth < 700 ? 200 : 250,
      cursor: { sync: { key: "step" }, drag: { x: true, y: false } },
      legend: { live: true },
      scales: { x: { time: false }, y: isLog ? { distr: 3, range: (_, low, high) => [low * 0.97, high * 1.03] } : {} },
      axes: [
        { ...axis, size: 28, label: "step", labelSize: 16, labelFont: "12px system-ui", space: 70, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000, 5000000], values: (_, ticks) => ticks.map(full) },
        { ...axis, size: 58, values: (_, ticks) => ticks.map(full), ...(isLog ? { splits: (_chart, _axis, min, max) => splitLog(min, max), filter: (_, ticks) => ticks } : {}) },
      ],
      series: [
        { label: "step", value: (_, value) => (value === null ? "unknown" : value.toLocaleString("en")) },
        { label, stroke: colour(stroke), width: 2, value: number },
        { label: "lowest", stroke: "transparent", value: number, points: { show: false } },
        { label: "highest", stroke: "transparent", value: number, points: { show: false } },
      ],
      bands: [{ series: [3, 2], fill: colour(stroke) + "33" }],
      hooks: {
        ready: [showLatest],
        draw: [drawMarks(marks)],
        setCursor: [showMark(marks), showLatest],
        setScale: [(chart, key) => {
          if (key !== "x") return;
          const { min, max } = chart.scales.x;
          const shows = isWithin({ min, max }, raw);
          if (shows !== isRaw) {
            isRaw = shows;
            chart.setData(shows ? raw : bins, false);
          }
          zoom = min <= bins[0][0] && max >= bins[0][bins[0].length - 1] ? null : { min, max };
          for (const other of charts) if (other !== chart && (other.scales.x.min !== min || other.scales.x.max !== max)) other.setScale("x", { min, max });
        }],
      },
    }, bins, place);
  }

  function drawCharts() {
    const source = find("#curves");
    if (!source || typeof uPlot === "undefined") return;
    const key = source.textContent + innerWidth + matchMedia("(prefers-color-scheme: dark)").matches;
    if (key === drawn) return;
    drawn = key;
    const data = JSON.parse(source.textContent), kept = zoom;
    for (const chart of charts) chart.destroy();
    charts = [];
    if (data.loss.bins.length && data.loss.bins[0].length > 1) {
      const known = data.loss.bins[1].filter((value) => value !== null);
      const isLog = known.length > 1 && Math.min(...known) > 0 && Math.max(...known) > 1.5 * Math.min(...known);
      charts.push(makeChart(find("#chart-loss"), data.loss, "loss", "--loss", data.marks, isLog));
      find("#loss-scale").textContent = isLog ? "logarithmic" : "";
    } else find("#chart-loss").textContent = "The log shows no loss.";
    if (data.pace.bins.length && data.pace.bins[0].length > 1) {
      find("#pace-unit").textContent = data.unit;
      charts.push(makeChart(find("#chart-pace"), data.pace, data.unit, "--pace", data.marks, false));
    } else find("#chart-pace").textContent = "The log shows no step times.";
    find(".range").hidden = !charts.length;
    if (kept) setRange(kept.min, kept.max);
  }

  function setRange(min, max) {
    for (const chart of charts) chart.setScale("x", { min, max });
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-range]");
    if (!button || !charts.length) return;
    const { bins, raw } = JSON.parse(find("#curves").textContent)[find("#chart-loss .u-wrap") ? "loss" : "pace"];
    const newest = raw.length ? raw[0] : bins[0], first = bins[0][0], last = Math.max(bins[0].at(-1), newest.at(-1) ?? 0);
    const begin = { all: first, half: first + (last - first) / 2, recent: newest[Math.max(0, newest.length - 120)] }[button.dataset.range];
    setRange(begin, last);
  });
  addEventListener("resize", drawCharts);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);

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
  drawCharts();
})();
