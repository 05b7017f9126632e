"use strict";
// Pages work without this script. It shows values under the pointer and for the arrow keys, and lets a legend hide arms.
(() => {
  const tip = document.getElementById("tip");

  function show(mark, x, y) {
    for (const other of document.querySelectorAll(".at")) other.classList.remove("at");
    (mark.querySelector(".touch") || mark).classList.add("at");
    if (tip.textContent !== mark.dataset.tip) tip.textContent = mark.dataset.tip;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.max(6, Math.min(x + 14, document.documentElement.clientWidth - box.width - 6));
    const top = y + 18 + box.height > window.innerHeight ? y - box.height - 12 : y + 18;
    tip.style.left = `${left}px`;
    tip.style.top = `${top}px`;
  }

  function hide() {
    tip.hidden = true;
    for (const mark of document.querySelectorAll(".at")) mark.classList.remove("at");
  }

  for (const plot of document.querySelectorAll(".plot")) {
    let at = -1;
    const point = (event) => {
      const mark = event.target.closest("[data-tip]");
      if (mark) show(mark, event.clientX, event.clientY);
      else hide();
    };
    plot.addEventListener("pointermove", point);
    plot.addEventListener("click", point); // a tap: a finger that is lifted has left the plot before
    plot.addEventListener("pointerleave", hide);
    plot.addEventListener("blur", hide);
    plot.addEventListener("keydown", (event) => {
      if (event.key === "Escape") return hide();
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step) return undefined;
      const marks = [...plot.querySelectorAll("[data-tip]")].filter((m) => m.getClientRects().length && !m.classList.contains("off"));
      if (!marks.length) return undefined;
      event.preventDefault();
      at = Math.max(0, Math.min(marks.length - 1, at + step));
      const box = marks[at].getBoundingClientRect();
      show(marks[at], box.left + box.width / 2, box.top + box.height / 2);
      return undefined;
    });
  }

  document.addEventListener("pointerdown", (event) => {
    if (!event.target.closest(".plot")) hide();
  });
  document.addEventListener("touchmove", hide, { passive: true });

  // Names in a legend become buttons that hide their series.
  for (const legend of document.querySelectorAll(".legend")) {
    for (const item of legend.querySelectorAll("li[data-series]")) {
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      button.append(...item.childNodes);
      item.append(button);
      button.addEventListener("click", () => {
        const off = button.getAttribute("aria-pressed") === "true";
        button.setAttribute("aria-pressed", String(!off));
        for (const mark of document.getElementById(legend.dataset.for).querySelectorAll(`.m-${item.dataset.series}`)) {
          mark.classList.toggle("off", off);
        }
      });
    }
  }

  // A link to an error puts the cursor on its line of the text.
  for (const link of document.querySelectorAll("a[data-line]")) {
    link.addEventListener("click", () => {
      const text = document.getElementById("text");
      const before = text.value.split("\n").slice(0, Number(link.dataset.line) - 1).join("\n").length;
      text.setSelectionRange(before + 1, before + 1);
    });
  }

  // A form is sent once; the server makes sure of that too. An answer that takes long is not a dead page.
  for (const form of document.querySelectorAll("form[method=post]")) {
    form.addEventListener("submit", (event) => {
      if (form.dataset.sent) event.preventDefault();
      form.dataset.sent = "yes";
      setTimeout(() => {
        tip.textContent = "Working …";
        tip.style.left = tip.style.top = "6px";
        tip.hidden = false;
      }, 700);
      setTimeout(() => delete form.dataset.sent, 5000);
    });
  }

  const waiting = document.querySelector("[data-reload]");
  if (waiting) setTimeout(() => location.reload(), 1000 * Number(waiting.dataset.reload));
})();
