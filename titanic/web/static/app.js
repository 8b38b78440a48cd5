// Enhances pages; each works without it. Parts marked data-live refresh, times are shown in the reader's time zone, and
// there are keyboard shortcuts (press ?) and themes.
"use strict";

const KEEP = { get: (name) => { try { return localStorage.getItem(name); } catch { return null; } },
               set: (name, value) => { try { localStorage.setItem(name, value); } catch { /* private window */ } } };
const THEMES = ["system", "light", "dark"];
const GO = { o: "/", s: "/services", w: "/workers", r: "/requests", f: "/failures", c: "/schedules", t: "/store", u: "/users", a: "/audit" };
const MOMENT = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });  // with the time zone

function paint(theme) {
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}
paint(KEEP.get("theme"));  // before the first paint

// -- times ----------------------------------------------------------------------------------------------------

function showTimes(root) {
  for (const one of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(one.dateTime);
    if (isNaN(moment)) continue;
    if ("ago" in one.dataset) one.title = MOMENT.format(moment);
    else one.textContent = MOMENT.format(moment);
  }
}

// -- live parts -----------------------------------------------------------------------------------------------

// Make `old` equal to `young` with as few changes as possible, so that focus, scroll and selection stay.
function morph(old, young) {
  if (old.isEqualNode(young)) return;
  if (old.nodeType !== young.nodeType || old.nodeName !== young.nodeName) { old.replaceWith(young); return; }
  if (old.nodeType !== Node.ELEMENT_NODE) { old.nodeValue = young.nodeValue; return; }
  for (const { name } of [...old.attributes]) {
    if (!young.hasAttribute(name) && !(name === "open" && old.localName === "details")) old.removeAttribute(name);
  }
  for (const { name, value } of young.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  const key = (node) => node.nodeType === Node.ELEMENT_NODE ? node.id || node.dataset.key || "" : "";
  const known = new Map([...old.children].filter(key).map((node) => [key(node), node]));
  let at = old.firstChild;
  for (const wanted of [...young.childNodes]) {
    const same = known.get(key(wanted));
    if (same) {
      if (same !== at) old.insertBefore(same, at); else at = at.nextSibling;
      morph(same, wanted);
    } else if (at && !key(at) && !key(wanted) && at.nodeName === wanted.nodeName) {
      const next = at.nextSibling;
      morph(at, wanted);
      at = next;
    } else old.insertBefore(wanted, at);
  }
  while (at) { const next = at.nextSibling; at.remove(); at = next; }
}

function live() {
  const parts = [...document.querySelectorAll("[data-live][id]")];
  if (!parts.length) return;
  const every = Math.min(...parts.map((part) => Number(part.dataset.every) || 2)) * 1000;
  const stale = document.getElementById("stale");
  const button = document.querySelector("[data-tool=live]");
  let paused = false, busy = false, failures = 0, fresh = new Date();

  function warn(why) {
    stale.textContent = `Last updated ${MOMENT.format(fresh)}: ${why} Retrying.`;
    stale.hidden = false;
  }

  async function refresh() {
    if (paused || busy || document.hidden || !document.querySelector("[data-live]")) return;
    if (document.querySelector("[data-live] input:checked")) return;  // do not disturb a selection
    busy = true;
    const late = setTimeout(warn, 5000, "no response since then.");  // the server may be away, or slow
    try {
      const answer = await fetch(location.href, { headers: { "X-Live": "1" }, signal: AbortSignal.timeout(30000) });
      if (answer.redirected || answer.status === 401) throw new Error("you are signed out; reload the page to sign in.");
      if (document.querySelector("[data-again]")) {  // an error page
        if (answer.status !== 503 && answer.status !== 504) location.reload();
        return;
      }
      if (answer.status === 503) throw new Error("titanic web cannot reach the server.");
      if (answer.status === 504) throw new Error("the server does not respond.");
      if (!answer.ok) throw new Error(`titanic web returned ${answer.status}.`);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      showTimes(page);
      reveal(page);
      for (const part of document.querySelectorAll("[data-live][id]")) {
        const young = page.getElementById(part.id);
        if (young) morph(part, young);
      }
      failures = 0; fresh = new Date(); stale.hidden = true;
    } catch (error) {
      failures += 1;
      const gone = error instanceof TypeError || error.name === "TimeoutError";
      if (failures > 1 || !stale.hidden) warn(gone ? "titanic web does not respond." : error.message);
    } finally { clearTimeout(late); busy = false; }
  }

  async function go() {
    for (;;) {
      await new Promise((done) => setTimeout(done, every * Math.min(2 ** failures, 4)));
      await refresh();
    }
  }
  button.hidden = false;
  button.addEventListener("click", () => {
    paused = !paused;
    button.setAttribute("aria-pressed", paused);
    button.textContent = paused ? "Updates paused" : "Pause updates";
    refresh();
  });
  document.addEventListener("visibilitychange", refresh);
  go();
}

// -- keys -----------------------------------------------------------------------------------------------------

function moveRow(step) {
  const rows = [...document.querySelectorAll("main tbody tr")].filter((row) => row.querySelector("a, input"));
  if (!rows.length) return;
  const at = rows.indexOf(document.activeElement?.closest("tr"));
  const row = rows[at < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(Math.max(at + step, 0), rows.length - 1)];
  (row.querySelector("a") || row.querySelector("input")).focus();
  row.scrollIntoView({ block: "nearest" });
}

function keys() {
  const dialog = document.getElementById("keys");
  const button = document.querySelector("[data-tool=keys]");
  const use = document.querySelector("[data-tool=keys-on]");
  let before = "";
  use.checked = KEEP.get("keys") !== "off";
  use.addEventListener("change", () => KEEP.set("keys", use.checked ? "on" : "off"));
  button.hidden = false;
  button.addEventListener("click", () => dialog.showModal());
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input:not([type=checkbox]), textarea, select, [contenteditable]");
    if (!use.checked || typing || dialog.open || event.ctrlKey || event.metaKey || event.altKey) return;
    const key = event.key, first = before;
    before = key === "g" ? "g" : "";
    if (first === "g" && GO[key]) location.href = document.querySelector(".brand").getAttribute("href") + GO[key].slice(1);
    else if (key === "/") (document.querySelector("[data-search]") || document.querySelector("[data-find]"))?.focus();
    else if (key === "?") dialog.showModal();
    else if (key === "j" || key === "k") moveRow(key === "j" ? 1 : -1);
    else if (key === "x") document.activeElement?.closest("tr")?.querySelector("input[type=checkbox]")?.click();
    else return;
    event.preventDefault();
  });
}

// -- the rest -------------------------------------------------------------------------------------------------

function theme() {
  const button = document.querySelector("[data-tool=theme]");
  const show = (name) => { button.textContent = `Theme: ${name}`; };
  const now = () => THEMES.includes(KEEP.get("theme")) ? KEEP.get("theme") : "system";
  button.hidden = false;
  show(now());
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(now()) + 1) % THEMES.length];
    KEEP.set("theme", next);
    paint(next);
    show(next);
  });
}

// Show elements that need this script.
function reveal(root) {
  for (const one of root.querySelectorAll("[data-copy], [data-all], [data-script]")) one.hidden = false;
}

function boxes() {
  document.addEventListener("change", (event) => {
    const name = event.target.dataset?.all;
    if (name) for (const one of document.getElementsByName(name)) one.checked = event.target.checked;
  });
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const label = button.textContent;
    try { await navigator.clipboard.writeText(button.dataset.copy); button.textContent = "Copied"; }
    catch { button.textContent = "Copy failed: select the text"; }
    setTimeout(() => { button.textContent = label; }, 2000);
  });
  reveal(document);
}

document.addEventListener("DOMContentLoaded", () => { showTimes(document); theme(); keys(); boxes(); live(); });
