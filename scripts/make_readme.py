#!/usr/bin/env python3
"""Make README.md from nbs/index.ipynb, as plain Markdown, outputs included. Needs nothing but Python.

    python scripts/make_readme.py            # write README.md
    python scripts/make_readme.py --check    # exit with 1 where README.md is not what the notebook gives"""
import argparse, base64, json, re, sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURES = {"image/svg+xml": "svg", "image/png": "png", "image/jpeg": "jpg"}
NOTE = "<!-- Made from nbs/index.ipynb by `make export`: edit the notebook. -->"


def text_of(value):
    "A notebook keeps text as a string or as a list of lines."
    return value if isinstance(value, str) else "".join(value)


def fenced(text, kind=""):
    "`text` as a block, between fences longer than any in it."
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).rstrip()
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    return f"{fence}{kind}\n{text}\n{fence}"


def from_the_top(markdown, folder):
    "Links and pictures that start from the notebook's folder, made to start from the repository's."
    def fix(m):
        if re.match(r"[a-z]+:|[#/]", m[2]): return m[0]
        parts = []
        for o in [*folder.split("/"), *m[2].split("/")]:
            if o == "..": parts.pop()
            elif o != ".": parts.append(o)
        return m[1] + "/".join(parts) + m[3]
    return re.sub(r"(\]\()([^)\s]+)(\))", fix, markdown)


def output(out, name, pictures):
    "One output as Markdown: a picture as a file, everything else as text."
    if out["output_type"] == "stream": return fenced(text_of(out["text"]), "text")
    data = {k: text_of(v) for k, v in out.get("data", {}).items() if not k.endswith("json")}
    for kind, suffix in PICTURES.items():
        if kind not in data: continue
        file = f"{name}.{suffix}"
        pictures[file] = data[kind].encode() if suffix == "svg" else base64.b64decode(data[kind])
        return f"![]({file})"
    if "text/markdown" in data: return data["text/markdown"].strip()
    return fenced(data["text/plain"], "text") if data.get("text/plain", "").strip() else ""


def readme(notebook, folder="nbs"):
    "The notebook as Markdown, and the pictures that it shows, by file name."
    blocks, pictures = [NOTE], {}
    for i, cell in enumerate(json.loads(Path(notebook).read_text(encoding="utf-8"))["cells"]):
        source = text_of(cell["source"]).strip()
        if cell["cell_type"] == "markdown": blocks.append(from_the_top(re.sub(r"^:::.*\n?", "", source, flags=re.M), folder))
        if cell["cell_type"] != "code": continue      # front matter is a raw cell
        flags = set(re.findall(r"^#\s*\|\s*([^\n]+?)\s*$", source, re.M))
        if flags & {"hide", "default_exp index", "include: false"}: continue
        code = re.sub(r"^#\s*\|.*\n?", "", source, flags=re.M).strip()
        if code and not flags & {"echo: false", "hide_input"}: blocks.append(fenced(code, "python"))
        if not flags & {"output: false", "hide_output"}:
            blocks += [output(o, f"README_files/{i}-{j}", pictures) for j, o in enumerate(cell["outputs"])]
    return "\n\n".join(o for o in blocks if o) + "\n", pictures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where something would change")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    args = parser.parse_args()
    notebook = args.root/"nbs"/"index.ipynb"
    if not notebook.exists(): sys.exit(f"There is no {notebook}, which README.md is made from.")
    text, pictures = readme(notebook)
    files = {"README.md": text.encode(), **pictures}
    stale = [o for o in (args.root/"README_files").glob("*") if f"README_files/{o.name}" not in files]
    changed = [k for k, v in files.items() if not (args.root/k).exists() or (args.root/k).read_bytes() != v]
    if args.check:
        if changed or stale: sys.exit("Not what nbs/index.ipynb gives; run `make export`: " + ", ".join([*changed, *map(str, stale)]))
        return
    for name in changed:
        (args.root/name).parent.mkdir(exist_ok=True)
        (args.root/name).write_bytes(files[name])
    for o in stale: o.unlink()


if __name__ == "__main__": main()
