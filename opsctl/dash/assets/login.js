"use strict";
(() => {
  // On every page: who reads with one link may open the link with more rights in the same browser.
  const base = document.documentElement.dataset.base;
  const place = document.getElementById("login"), form = document.getElementById("token-form");
  async function enter(token) {
    // The token must not stay in the address, nor in the history.
    history.replaceState(null, "", location.pathname + location.search);
    if (place) place.textContent = "Checking the token …";
    const answer = await fetch(`${base}/session`, { method: "POST", body: token, headers: { "Content-Type": "text/plain" } });
    if (answer.ok) { location.reload(); return; }
    const text = "This token is not valid: opsctl dash prints the current link.";
    if (place) place.textContent = text; else alert(text);
  }
  function enterByAddress() {
    const found = /(?:^#|&)token=([\w-]+)/.exec(location.hash);
    if (found) enter(found[1]);
  }
  addEventListener("hashchange", enterByAddress);
  enterByAddress();
  if (form) form.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = document.getElementById("token").value.trim();
    enter((/token=([\w-]+)/.exec(text) || [null, text])[1]);
  });
})();
