// Brings pages to life; each works without it. Parts marked data-live are brought up to date, times are told in the
// reader's zone, and there are keys (press ?) and a choice of colours.
"use strict";

const KEEP = { get: (name) => { try { return localStorage.getItem(name); } catch { return null; } },
               set: (name, value) => { try { localStorage.setItem(name, value); } catch { /* private window */ } } };
const THEMES = ["system", "light", "dark"];
const GO = { o: "/", s: "/services", r: "/requests", f: "/failures", c: "/schedules", t: "/store", u: "/users" };
const MOMENT = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

function paint(theme) {
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}
paint(KEEP.get("theme"));  // before anything is drawn

// -- times ----------------------------------------------------------------------------------------------------

function tellTimes(root) {
  for (const one of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(one.dateTime);
    if (isNaN(moment)) continue;
    if ("ago" in one.dataset) one.title = MOMENT.format(moment);
    else one.textContent = MOMENT.format(moment);
  }
}

// -- live parts -----------------------------------------------------------------------------------------------

// Make `old` the same as `young` with as few changes as possible, so that focus, scroll and selection stay.
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

  function tell(why) {
    stale.textContent = `What you see is of ${MOMENT.format(fresh)}: ${why} It is asked for again.`;
    stale.hidden = false;
  }

  async function look() {
    if (paused || busy || document.hidden || !document.querySelector("[data-live]")) return;
    if (document.querySelector("[data-live] input:checked")) return;  // who selects is not disturbed
    busy = true;
    const late = setTimeout(tell, 5000, "there has been no answer since.");  // the server may be away, or slow
    try {
      const answer = await fetch(location.href, { headers: { "X-Live": "1" }, signal: AbortSignal.timeout(30000) });
      if (answer.redirected || answer.status === 401) throw new Error("You are logged out; reload the page to log in.");
      if (document.querySelector("[data-again]")) {  // a page that could not be shown
        if (answer.status !== 503 && answer.status !== 504) location.reload();
        return;
      }
      if (answer.status === 503) throw new Error("titanic web cannot ask the server now.");
      if (answer.status === 504) throw new Error("the server does not answer titanic web.");
      if (!answer.ok) throw new Error(`titanic web answers ${answer.status}.`);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      tellTimes(page);
      reveal(page);
      for (const part of document.querySelectorAll("[data-live][id]")) {
        const young = page.getElementById(part.id);
        if (young) morph(part, young);
      }
      failures = 0; fresh = new Date(); stale.hidden = true;
    } catch (error) {
      failures += 1;
      const gone = error instanceof TypeError || error.name === "TimeoutError";
      if (failures > 1 || !stale.hidden) tell(gone ? "titanic web does not answer." : error.message);
    } finally { clearTimeout(late); busy = false; }
  }

  async function go() {
    for (;;) {
      await new Promise((done) => setTimeout(done, every * Math.min(2 ** failures, 4)));
      await look();
    }
  }
  button.hidden = false;
  button.addEventListener("click", () => {
    paused = !paused;
    button.setAttribute("aria-pressed", paused);
    button.textContent = paused ? "Updates paused" : "Pause updates";
    look();
  });
  document.addEventListener("visibilitychange", look);
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
    if (first === "g" && GO[key]) location.href = GO[key];
    else if (key === "/") document.querySelector("[data-search]")?.focus();
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
  const tell = (name) => { button.textContent = `Theme: ${name}`; };
  const now = () => THEMES.includes(KEEP.get("theme")) ? KEEP.get("theme") : "system";
  button.hidden = false;
  tell(now());
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(now()) + 1) % THEMES.length];
    KEEP.set("theme", next);
    paint(next);
    tell(next);
  });
}

// What is of use only with this script.
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
    catch { button.textContent = "Not copied: select the text"; }
    setTimeout(() => { button.textContent = label; }, 2000);
  });
  reveal(document);
}

document.addEventListener("DOMContentLoaded", () => { tellTimes(document); theme(); keys(); boxes(); live(); });
