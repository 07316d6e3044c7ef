// The few shapes of buttons and states, drawn on 16 by 16.

const SHAPES = {
  play: "M4 2.5l9.5 5.5L4 13.5z", pause: "M3.5 3h3v10h-3zM9.5 3h3v10h-3z", step: "M3 3l7 5-7 5zM11 3h2v10h-2z",
  steps: "M1.5 3l6.5 5-6.5 5zM8 3l6.5 5L8 13z", stop: "M3.5 3.5h9v9h-9z", rewind: "M14.5 3L8 8l6.5 5zM8 3L1.5 8 8 13z",
  evaluate: "M2.5 13.5V9h2.6v4.5zM6.7 13.5v-11h2.6v11zM10.9 13.5V6h2.6v7.5z", checkpoint: "M6.9 2h2.2v5.6h2.9L8 11.6 4 7.6h2.9zM2.5 12.6h11V14.2h-11z",
  snapshot: "M1.5 4.5h3l1.2-1.8h4.6l1.2 1.8h3v8.8h-13zM8 5.9a2.9 2.9 0 1 0 .001 0z", more: "M3.2 5.4L8 10.2l4.8-4.8 1.1 1.1L8 12.4 2.1 6.5z",
  good: "M6.4 12.6L2 8.3l1.4-1.4 3 2.9 6.2-6.4L14 4.8z", plain: "M3 7h10v2H3z", warn: "M8 1.8l7 12.4H1zM7.2 6v4.2h1.6V6zM7.2 11.2v1.6h1.6v-1.6z",
  bad: "M3.8 2.4L8 6.6l4.2-4.2 1.4 1.4L9.4 8l4.2 4.2-1.4 1.4L8 9.4l-4.2 4.2-1.4-1.4L6.6 8 2.4 3.8z", dot: "M8 3.5a4.5 4.5 0 1 0 .001 0z",
  ring: "M8 2.8a5.2 5.2 0 1 0 .001 0zM8 4.8a3.2 3.2 0 1 1-.001 0z", wait: "M8 1.8a6.2 6.2 0 1 0 .001 0zM7.2 4.2h1.6v3.5l2.4 1.5-.9 1.3-3.1-2z",
  eye: "M8 3.2C4.4 3.2 1.7 6 .8 8c.9 2 3.6 4.8 7.2 4.8s6.3-2.8 7.2-4.8c-.9-2-3.6-4.8-7.2-4.8zM8 5.3a2.7 2.7 0 1 0 .001 0z",
  star: "M8 1.3l2 4.3 4.7.6-3.4 3.3.9 4.7L8 11.9l-4.2 2.3.9-4.7L1.3 6.2 6 5.6z",
  branch: "M3 1.5h1.8v6.2c3.4 0 5-.6 5.2-3.2H8L11.2.8l3.2 3.7h-2.5c-.3 4-3 5-7.1 5v5H3z",
  info: "M8 1.5a6.5 6.5 0 1 0 .001 0zM7.1 4.2h1.8V6H7.1zM7.1 7.2h1.8v4.6H7.1z", flag: "M3 2h1.4v12H3zM4.4 2.6h8.4L10.4 5.6l2.4 3H4.4z",
};

function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), path = document.createElementNS(svg.namespaceURI, "path");
  for (const [key, value] of Object.entries({ viewBox: "0 0 16 16", class: "tnb-icon", "aria-hidden": "true", focusable: "false" })) svg.setAttribute(key, value);
  path.setAttribute("fill-rule", "evenodd");
  svg.append(path);
  setIcon(svg, name);
  return svg;
}

function setIcon(svg, name) { setAttribute(svg.firstChild, "d", SHAPES[name] || ""); }
