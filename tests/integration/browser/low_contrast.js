(() => {
  const parse = (text) => text.match(/[\d.]+/g).map(Number);
  const bend = (v) => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => .2126 * bend(r / 255) + .7152 * bend(g / 255) + .0722 * bend(b / 255);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] === 1) return c;
    }
    return [255, 255, 255];
  };
  const texts = [...document.querySelectorAll('body *')].filter(e => e.children.length === 0 && e.textContent.trim()
    && e.offsetParent && !e.closest('svg, script, style, .uplot'));
  return texts.map(e => {
    const [a, b] = [light(parse(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
    return [e.textContent.trim().slice(0, 40), (a + .05) / (b + .05)];
  }).filter(([, ratio]) => ratio < 4.5);
})()
