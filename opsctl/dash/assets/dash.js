"use strict";
(() => {
  const root = document.documentElement, base = root.dataset.base, every = Number(root.dataset.every);
  const find = (selector) => document.querySelector(selector);
  const all = (selector) => [...document.querySelectorAll(selector)];

  // --- live updates: the server names the version, the page fetches itself and swaps what has changed
  let version = Number(root.dataset.version), madeAt = null, isLost = false;

  function describeAge(seconds) {
    for (const [size, unit, length] of [[172800, "d", 86400], [7200, "h", 3600], [90, "min", 60]])
      if (seconds >= size) return `${Math.round(seconds / length)} ${unit}`;
    return `${Math.round(seconds)} s`;
  }

  function showAge() {
    const place = find("#fresh");
    if (!place || madeAt === null) return;
    const age = (performance.now() - madeAt) / 1000;
    place.textContent = `${isLost ? "connection lost · " : "updated "}${describeAge(age)} ago`;
    place.classList.toggle("stale", isLost || age > 3 * every + 15);
  }

  async function update() {
    const query = new URLSearchParams(location.search);
    query.set("part", "1");
    const answer = await fetch(`${location.pathname}?${query}`);
    if (answer.status === 401) { location.reload(); return; }
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of page.querySelectorAll("[data-live]")) {
      const old = document.getElementById(part.id);
      if (old && part.tagName === "DETAILS") part.open = old.open;
      if (old && old.outerHTML !== part.outerHTML) old.replaceWith(document.importNode(part, true));
    }
    document.title = page.title;
    drawCharts();
    if (logMode === "end") loadLog("");
  }

  if (innerWidth <= 700) for (const panel of all("details.panel")) panel.open = false;

  if (root.dataset.live) {
    const events = new EventSource(`${base}/events`);
    events.onmessage = (event) => {
      const news = JSON.parse(event.data);
      isLost = false;
      madeAt = news.age === null ? null : performance.now() - 1000 * news.age;
      // Not all viewers at the same moment.
      if (news.version !== version) setTimeout(update, 1500 * Math.random());
      version = news.version;
      showAge();
    };
    events.onerror = () => { isLost = true; showAge(); };
    setInterval(showAge, 1000);
  }

  // --- actions: the plan first where something is stopped or started, then the confirmation
  let csrf = "";
  const dialog = find("#act");

  async function ask(instruction) {
    if (!csrf) csrf = (await (await fetch(`${base}/session`)).json()).csrf;
    const answer = await fetch(`${base}/act`, {
      method: "POST", body: JSON.stringify(instruction),
      headers: { "Content-Type": "application/json", "X-CSRF-Token": csrf },
    });
    const result = await answer.json();
    return answer.ok ? result : { error: [result.error, result.hint].filter(Boolean).join(" · ") };
  }

  async function openDialog(button) {
    const instruction = { verb: button.dataset.verb, train: button.dataset.train, key: button.dataset.key };
    const go = find("#act-go"), text = find("#act-text");
    find("#act-title").textContent = [button.textContent, instruction.train || instruction.key].join(" · ");
    find("#act-reason").value = "";
    text.className = "";
    text.textContent = button.dataset.confirm ? "Asking Slurm what would be done …" : (instruction.key || "");
    go.textContent = button.textContent;
    go.hidden = false;
    go.disabled = Boolean(button.dataset.confirm);
    find("#act-cancel").textContent = "Cancel";
    dialog.showModal();
    if (button.dataset.confirm) {
      const plan = await ask(instruction);
      text.textContent = plan.error || plan.text;
      text.className = plan.error ? "tone-red word" : "";
      go.disabled = Boolean(plan.error);
    }
    go.onclick = async () => {
      go.disabled = true;
      const reason = find("#act-reason").value, person = find("#act-person").value;
      const result = await ask({ ...instruction, reason, person, confirmed: true });
      text.textContent = result.error || result.text;
      text.className = result.error ? "tone-red word" : "tone-green word";
      go.hidden = !result.error;
      go.disabled = false;
      find("#act-cancel").textContent = result.error ? "Cancel" : "Close";
    };
  }

  if (dialog) document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-verb]");
    if (button) openDialog(button);
  });

  // --- curves
  let charts = [], drawn = "", zoom = null;
  const colour = (name) => getComputedStyle(document.body).getPropertyValue(name).trim();
  const MARK_COLOURS = { alert: "--red", restart: "--soft", held: "--amber", "rolled back": "--hang", "node excluded": "--hardware" };

  function drawMarks(marks) {
    return (chart) => {
      const { ctx, bbox } = chart;
      ctx.save();
      ctx.lineWidth = devicePixelRatio;
      ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
      for (const [step, kind] of marks) {
        const x = Math.round(chart.valToPos(step, "x", true));
        if (x < bbox.left || x > bbox.left + bbox.width) continue;
        ctx.strokeStyle = colour(MARK_COLOURS[kind] || "--blue");
        ctx.beginPath();
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
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

  function makeChart(place, columns, series, marks, isLog) {
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    const short = (value) => (value === null ? "" : Math.abs(value) >= 1000 ? value.toLocaleString("en", { notation: "compact", maximumFractionDigits: 1 }) : Number(value.toPrecision(3)).toString());
    return new uPlot({
      width: place.clientWidth, height: innerWidth < 700 ? 190 : 240,
      cursor: { sync: { key: "step" }, drag: { x: true, y: false } },
      legend: { live: true },
      scales: { x: { time: false }, y: isLog ? { distr: 3 } : {} },
      axes: [{ ...axis, size: 28, values: (_, ticks) => ticks.map(short) }, { ...axis, size: 52, values: (_, ticks) => ticks.map(short) }],
      series: [{ label: "step", value: (_, value) => (value === null ? "–" : value.toLocaleString("en")) }, ...series],
      bands: columns.length > 3 ? [{ series: [3, 2], fill: colour("--band") }] : [],
      hooks: {
        draw: [drawMarks(marks)],
        setCursor: [showMark(marks)],
        setScale: [(chart, key) => {
          if (key !== "x") return;
          const { min, max } = chart.scales.x, xs = chart.data[0];
          zoom = min <= xs[0] && max >= xs[xs.length - 1] ? null : { min, max };
          for (const other of charts) if (other !== chart && (other.scales.x.min !== min || other.scales.x.max !== max)) other.setScale("x", { min, max });
        }],
      },
    }, columns, place);
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
    const number = (_, value) => (value === null || value === undefined ? "–" : Number(value.toPrecision(5)).toString());
    if (data.loss.length && data.loss[0].length > 1) {
      const known = data.loss[1].filter((value) => value !== null);
      const isLog = known.length > 1 && Math.min(...known) > 0 && Math.max(...known) > 3 * Math.min(...known);
      charts.push(makeChart(find("#chart-loss"), data.loss, [
        { label: "loss", stroke: colour("--loss"), width: 2, value: number },
        { label: "lowest", stroke: "transparent", value: number, points: { show: false } },
        { label: "highest", stroke: "transparent", value: number, points: { show: false } },
      ], data.marks, isLog));
    } else find("#chart-loss").textContent = "no loss in the log";
    if (data.pace.length && data.pace[0].length > 1) {
      find("#pace-unit").textContent = data.unit;
      charts.push(makeChart(find("#chart-pace"), data.pace, [{ label: data.unit, stroke: colour("--pace"), width: 2, value: number }], data.marks, false));
    } else find("#chart-pace").textContent = "no step times in the log";
    find(".range").hidden = !charts.length;
    if (kept) setRange(kept.min, kept.max);
  }

  function setRange(min, max) {
    for (const chart of charts) chart.setScale("x", { min, max });
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-range]");
    if (!button || !charts.length) return;
    const xs = charts[0].data[0], first = xs[0], last = xs[xs.length - 1];
    const begin = { all: first, half: first + (last - first) / 2, recent: xs[Math.max(0, xs.length - 120)] }[button.dataset.range];
    setRange(begin, last);
  });
  addEventListener("resize", drawCharts);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);

  // --- the log
  let logMode = "";
  const log = find("#log");

  async function loadLog(query, mode) {
    const answer = await fetch(`${location.pathname}/log?${query}`);
    if (!answer.ok) { find("#log-title").textContent = "the log cannot be read"; return; }
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
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
    find("#log-error").addEventListener("click", () => loadLog("first-error=1", "error"));
    find("#log-end").addEventListener("click", () => loadLog("", "end"));
    loadLog("", "end");
  }
  drawCharts();
})();
