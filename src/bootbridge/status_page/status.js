// Updates the page from its own URL, every second. Without this script the page is complete and still.
"use strict";
(() => {
  const TIMEOUT_MS = 5000;
  const PARTS = ["header .name", "header .facts", "#updated", "#slower", "nav", "main"];
  // Set by a person, not by the server.
  const KEPT = new Set(["open", "tabindex"]);

  const pause = document.getElementById("pause");
  const lost = document.getElementById("lost");
  let paused = false;
  let timer = 0;
  let request = null;

  // The program asks for longer periods while an update is expensive.
  const period = () => 1000 * Number(document.getElementById("updated").dataset.seconds);

  // Changes `old` into `fresh` in place: focus, selection and scroll positions stay.
  function patch(old, fresh) {
    if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
      old.replaceWith(document.importNode(fresh, true));
      return;
    }
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name) && !KEPT.has(name)) old.removeAttribute(name);
    }
    for (const { name, value } of fresh.attributes) {
      if (old.getAttribute(name) !== value && !KEPT.has(name)) old.setAttribute(name, value);
    }
    const before = [...old.childNodes];
    const after = [...fresh.childNodes];
    after.forEach((node, index) => {
      if (index < before.length) patch(before[index], node);
      else old.append(document.importNode(node, true));
    });
    before.slice(after.length).forEach((node) => node.remove());
  }

  function show(fresh) {
    for (const selector of PARTS) {
      const old = document.querySelector(selector);
      const next = fresh.querySelector(selector);
      if (old && next) patch(old, next);
    }
    document.body.classList.remove("stale");
    lost.hidden = true;
  }

  function fail(reason) {
    if (lost.hidden) {
      const since = document.querySelector("#updated").textContent;
      lost.textContent = `No answer since ${since} UTC (${reason}): the page shows the state of that time.`;
      lost.hidden = false;
      document.body.classList.add("stale");
    }
  }

  function update() {
    clearTimeout(timer);
    if (paused || document.hidden || request) return;
    const started = performance.now();
    // Parses a document without scripts, and without building HTML from strings.
    request = new XMLHttpRequest();
    request.open("GET", location.pathname + location.search);
    request.responseType = "document";
    request.timeout = TIMEOUT_MS;
    request.onload = () => {
      if (request.status === 200 && request.response) {
        if (!paused) show(request.response);
      } else fail(`status ${request.status}`);
    };
    request.onerror = () => fail("not reachable");
    request.ontimeout = () => fail("timed out");
    request.onloadend = () => {
      request = null;
      timer = setTimeout(update, Math.max(0, period() - (performance.now() - started)));
    };
    request.send();
  }

  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? "Resume" : "Pause";
    pause.setAttribute("aria-pressed", String(paused));
    if (!paused) update();
  });
  document.addEventListener("visibilitychange", update);
  timer = setTimeout(update, period());
})();
