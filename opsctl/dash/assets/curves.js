"use strict";
// Curves of a train's page: one resolution over the whole run; single steps only where the zoom shows nothing else.
(() => {
  const find = (selector) => document.querySelector(selector);
  const base = document.documentElement.dataset.base;
  const MARK_COLOURS = { alert: "--red", end: "--red", restart: "--soft", held: "--amber", "rolled back": "--hang", "node excluded": "--hardware" };
  const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000, 5000000];
  const LOG_FROM = 1.5; // a loss that fell so far is shown on a logarithmic scale until the reader chooses
  const SMOOTH_SHARE = 25; // a smoothed value is the mean of this part of the points, about its place
  let charts = [], drawn = "", zoom = null;
  let isSmooth = false, isLogChosen = null, other = null, requests = 0;

  const colour = (name) => getComputedStyle(document.body).getPropertyValue(name).trim();
  const full = (value) => (value === null || value === undefined ? "" : Number(value.toPrecision(6)).toLocaleString("en", { maximumFractionDigits: 6 }));
  const say = (text, place = "#mark-note") => { find(place).textContent = text; };

  function splitLog(min, max) {
    const ticks = [];
    for (let power = 10 ** Math.floor(Math.log10(min)); power <= max; power *= 10)
      for (const digit of [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8]) if (digit * power >= min && digit * power <= max) ticks.push(digit * power);
    return ticks.length > 9 ? ticks.filter((tick) => [1, 2, 5].some((digit) => Math.abs(Math.log10(tick / digit) % 1) < 1e-9)) : ticks;
  }

  // The mean of the points about each place: unlike a running mean, it does not come late.
  function smoothen(values) {
    const reach = Math.max(1, Math.floor(values.length / SMOOTH_SHARE / 2));
    return values.map((value, place) => {
      const near = values.slice(Math.max(0, place - reach), place + reach + 1).filter((one) => one !== null);
      return value === null ? null : near.reduce((sum, one) => sum + one, 0) / near.length;
    });
  }

  function arrange(columns, compared) {
    if (!columns.length) return columns;
    const own = isSmooth ? [columns[0], smoothen(columns[1]), columns[2], columns[3]] : columns;
    if (!compared || compared.length < 2) return own;
    return uPlot.join([own, [compared[0], isSmooth ? smoothen(compared[1]) : compared[1]]]);
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
      const left = chart.cursor.left;
      const near = left < 0 ? [] : marks.filter((mark) => Math.abs(chart.valToPos(mark[0], "x") - left) < 6);
      say(near.map(([step, , text, at]) => `step ${Math.round(step).toLocaleString("en")}, ${at}: ${text}`).join("  ·  "));
    };
  }

  function findLast(chart) {
    let last = chart.data[0].length - 1;
    while (last > 0 && (chart.data[1][last] === null || chart.data[1][last] === undefined)) last -= 1;
    return last;
  }

  function showLatest(chart) {
    if (chart.cursor.idx === null || chart.cursor.idx === undefined) chart.setLegend({ idx: findLast(chart) }, false);
  }

  function isWithin(range, columns) {
    return columns.length > 0 && columns[0].length > 1 && range.min >= columns[0][0];
  }

  function makeChart(place, parts, compared, label, stroke, marks, isLog) {
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    const number = (_, value) => (value === null || value === undefined ? "unknown" : full(Number(value.toPrecision(5))));
    const bins = arrange(parts.bins, compared?.bins), raw = arrange(parts.raw, compared?.bins);
    let isRaw = false;
    return new uPlot({
      width: place.clientWidth, height: innerWidth < 700 ? 200 : 250,
      cursor: { sync: { key: "step" }, drag: { x: true, y: false } },
      legend: { live: true },
      scales: { x: { time: false }, y: isLog ? { distr: 3, range: (_, low, high) => [low * 0.97, high * 1.03] } : {} },
      axes: [
        { ...axis, size: 28, label: "step", labelSize: 16, labelFont: "12px system-ui", space: 70, incrs: STEPS, values: (_, ticks) => ticks.map(full) },
        { ...axis, size: 58, values: (_, ticks) => ticks.map(full), ...(isLog ? { splits: (_chart, _axis, min, max) => splitLog(min, max), filter: (_, ticks) => ticks } : {}) },
      ],
      series: [
        { label: "step", value: (_, value) => (value === null || value === undefined ? "unknown" : value.toLocaleString("en")) },
        { label: isSmooth ? `${label}, smoothed` : label, stroke: colour(stroke), width: 2, value: number },
        { label: "lowest", stroke: "transparent", value: number, points: { show: false } },
        { label: "highest", stroke: "transparent", value: number, points: { show: false } },
        ...(bins.length > 4 ? [{ label: other.name, stroke: colour("--storage"), width: 2, dash: [7, 4], value: number, points: { show: false } }] : []),
      ],
      bands: [{ series: [3, 2], fill: colour(stroke) + "33" }],
      hooks: {
        ready: [showLatest],
        draw: [drawMarks(marks)],
        setCursor: [showMark(marks), showLatest],
        setScale: [(chart, key) => {
          if (key !== "x") return;
          const { min, max } = chart.scales.x;
          const shows = isWithin({ min, max }, parts.raw);
          if (shows !== isRaw) {
            isRaw = shows;
            chart.setData(shows ? raw : bins, false);
          }
          zoom = min <= bins[0][0] && max >= bins[0][bins[0].length - 1] ? null : { min, max };
          for (const one of charts) if (one !== chart && (one.scales.x.min !== min || one.scales.x.max !== max)) one.setScale("x", { min, max });
        }],
      },
    }, bins, place);
  }

  const isCurve = (parts) => parts.bins.length > 0 && parts.bins[0].length > 1;

  function describe(name, parts) {
    const [steps, values] = parts.bins, known = values.filter((value) => value !== null);
    const last = values.findLast((value) => value !== null) ?? null;
    return `${name} over the steps ${full(steps[0])} to ${full(steps.at(-1))}: first ${full(known[0])}, lowest ${full(Math.min(...known))}, highest ${full(Math.max(...known))}, last ${full(last)}`;
  }

  function drawCharts() {
    const source = find("#curves");
    if (!source || typeof uPlot === "undefined") return;
    const key = [source.textContent, innerWidth, matchMedia("(prefers-color-scheme: dark)").matches, isSmooth, isLogChosen, other?.name].join();
    if (key === drawn) return;
    drawn = key;
    const data = JSON.parse(source.textContent), kept = zoom;
    for (const chart of charts) chart.destroy();
    charts = [];
    draw("#chart-loss", "loss", data.loss, "The log shows no loss.", (place) => {
      const known = data.loss.bins[1].filter((value) => value !== null), lowest = Math.min(...known);
      const isLog = lowest > 0 && known.length > 1 && (isLogChosen ?? Math.max(...known) > LOG_FROM * lowest);
      find("#loss-scale").textContent = isLog ? "logarithmic" : "";
      find("#curve-log").setAttribute("aria-pressed", isLog);
      find("#curve-log").disabled = lowest <= 0;
      return makeChart(place, data.loss, other?.curves.loss, "loss", "--loss", data.marks, isLog);
    });
    draw("#chart-pace", "throughput", data.pace, "The log shows no step times.", (place) => {
      find("#pace-unit").textContent = data.unit;
      // samples and steps a second cannot be compared
      const compared = other?.curves.unit === data.unit ? other.curves.pace : null;
      return makeChart(place, data.pace, compared, data.unit, "--pace", data.marks, false);
    });
    find("#curve-smooth").setAttribute("aria-pressed", isSmooth);
    find(".range").hidden = find("#curve-keys").hidden = !charts.length;
    if (kept) setRange(kept.min, kept.max);
  }

  function draw(selector, name, parts, missing, make) {
    const place = find(selector);
    if (!isCurve(parts)) { place.textContent = missing; return; }
    place.replaceChildren();
    place.setAttribute("aria-label", describe(name, parts));
    charts.push(make(place));
  }

  function setRange(min, max) {
    for (const chart of charts) chart.setScale("x", { min, max });
  }

  function showRange(name) {
    const { bins, raw } = JSON.parse(find("#curves").textContent)[find("#chart-loss .u-wrap") ? "loss" : "pace"];
    const newest = raw.length ? raw[0] : bins[0], first = bins[0][0], last = Math.max(bins[0].at(-1), newest.at(-1) ?? 0, other?.curves.loss.bins[0]?.at(-1) ?? 0);
    const begin = { all: first, half: first + (last - first) / 2, recent: newest[Math.max(0, newest.length - 120)] }[name];
    setRange(begin, name === "recent" ? newest.at(-1) : last);
  }

  // --- another train: its page holds its curves
  async function compareWith(name) {
    const request = ++requests, tries = 20;
    other = null;
    for (let count = 0; name && count < tries && request === requests && !other; count += 1) {
      const answer = await fetch(`${base}/train/${encodeURIComponent(name)}?part=1`).catch(() => ({ ok: false }));
      if (!answer.ok) { say(`The page of ${name} cannot be read.`, "#compare-note"); break; }
      const curves = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("#curves");
      if (curves) other = { name, curves: JSON.parse(curves.textContent) };
      else {
        say(`opsctl reads the log of ${name} …`, "#compare-note");
        await new Promise((done) => setTimeout(done, 3000));
      }
    }
    if (request !== requests) return; // another choice meanwhile
    if (other) say(other.curves.loss.bins.length ? `${name} is the dashed line.` : `The log of ${name} shows no loss.`, "#compare-note");
    if (!name) say("", "#compare-note");
    zoom = null;
    drawCharts();
  }

  // --- keys: the cursor as with a pointer, and its values as text for screen readers
  function moveCursor(chart, by) {
    const idx = Math.min(chart.data[0].length - 1, Math.max(0, (chart.cursor.idx ?? findLast(chart)) + by));
    chart.setCursor({ left: chart.valToPos(chart.data[0][idx], "x"), top: chart.over.clientHeight / 2 });
    const values = chart.series.slice(1).map((series, number) => `${series.label} ${full(chart.data[number + 1][idx]) || "unknown"}`);
    const mark = find("#mark-note").textContent;
    say([`step ${full(chart.data[0][idx])}: ${values.join(", ")}`, mark].filter(Boolean).join("  ·  "));
  }

  function zoomBy(chart, factor) {
    const { min, max } = chart.scales.x, middle = chart.posToVal(chart.cursor.left >= 0 ? chart.cursor.left : chart.over.clientWidth / 2, "x");
    setRange(middle - (middle - min) * factor, middle + (max - middle) * factor);
  }

  document.addEventListener("keydown", (event) => {
    const chart = charts.find((one) => one.root.parentElement === event.target);
    if (!chart || event.ctrlKey || event.metaKey || event.altKey) return;
    const far = event.shiftKey ? 10 : 1;
    const keys = {
      ArrowLeft: () => moveCursor(chart, -far), ArrowRight: () => moveCursor(chart, far),
      Home: () => moveCursor(chart, -Infinity), End: () => moveCursor(chart, Infinity),
      "+": () => zoomBy(chart, 0.5), "-": () => zoomBy(chart, 2), 0: () => showRange("all"),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });

  document.addEventListener("click", (event) => {
    const button = event.target.closest(".range button");
    if (!button || !charts.length) return;
    if (button.dataset.range) showRange(button.dataset.range);
    if (button.id === "curve-smooth") isSmooth = !isSmooth;
    if (button.id === "curve-log") isLogChosen = button.getAttribute("aria-pressed") !== "true";
    drawCharts();
  });
  find("#curve-other")?.addEventListener("change", (event) => compareWith(event.target.value));
  document.addEventListener("opsctl:swapped", drawCharts);
  addEventListener("resize", drawCharts);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);
  drawCharts();
})();
