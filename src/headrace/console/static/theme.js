/* Before the first paint: the theme that was chosen, or none, which follows the system. */
const chosen = localStorage.getItem("headrace.theme");
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
