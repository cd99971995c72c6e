"use strict";
(() => {
  const base = document.documentElement.dataset.base;
  const say = (text) => { document.getElementById("login").textContent = text; };
  async function enter(token) {
    say("Checking the token …");
    const answer = await fetch(`${base}/session`, { method: "POST", body: token, headers: { "Content-Type": "text/plain" } });
    if (!answer.ok) { say("This token is not valid: opsctl dash prints the current link."); return; }
    // The token must not stay in the address, nor in the history.
    history.replaceState(null, "", location.pathname + location.search);
    location.reload();
  }
  const found = /(?:^#|&)token=([\w-]+)/.exec(location.hash);
  if (found) enter(found[1]);
  document.getElementById("token-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = document.getElementById("token").value.trim();
    enter((/token=([\w-]+)/.exec(text) || [null, text])[1]);
  });
})();
