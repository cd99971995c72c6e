(() => {
  const isFaded = (e) => { for (; e; e = e.parentElement) if (getComputedStyle(e).opacity < 1) return !e.disabled; return false; };
  // A filter of an element greys the colours of everything inside; computed styles do not tell.
  const isGrey = (e) => { for (; e; e = e.parentElement) if (getComputedStyle(e).filter === 'grayscale(1)') return true; return false; };
  const parse = (text, e) => {
    const c = text.match(/[\d.]+/g).map(Number), grey = .2126 * c[0] + .7152 * c[1] + .0722 * c[2];
    return isGrey(e) ? [grey, grey, grey, ...c.slice(3)] : c;
  };
  const bend = (v) => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => .2126 * bend(r / 255) + .7152 * bend(g / 255) + .0722 * bend(b / 255);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor, e);
      if (c.length < 4 || c[3] === 1) return c;
    }
    return [255, 255, 255];
  };
  const texts = [...document.querySelectorAll('body *')].filter(e => e.children.length === 0 && e.textContent.trim()
    && e.offsetParent && !e.closest('svg, script, style, .uplot'));
  return texts.map(e => {
    const [a, b] = [light(parse(getComputedStyle(e).color, e)), light(behind(e))].sort((x, y) => y - x);
    return [e.textContent.trim().slice(0, 40), isFaded(e) ? 0 : (a + .05) / (b + .05)];
  }).filter(([, ratio]) => ratio < 4.5);
})()
