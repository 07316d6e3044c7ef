// The picture that the kernel keeps for the saved notebook stands below the live view: it is hidden while that lives.

class Stills {
  constructor(root) {
    this.root = root;
    this.hidden = new Set();
  }

  // Hide the stills of `id`, those that come later too. Only in a page: a view is made before it stands there.
  watch(id) {
    if (!this.root.isConnected || !id || this.id === id && this.observer) return;
    this.stop();
    this.id = id;
    this.scope = this.root.closest(".jp-OutputArea") || this.root.getRootNode();
    this.observer = new MutationObserver(changes => {
      if (changes.every(o => this.root.contains(o.target))) return;   // what this view does itself
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.look(), 30);
    });
    this.observer.observe(this.scope, { childList: true, subtree: true, attributes: true, attributeFilter: ["data-trainer-nb-still", "alt", "title"] });
    this.look();
  }

  look() {
    for (const node of this.hidden) if (!node.isConnected) this.giveBack(node);
    for (const node of this.scope.querySelectorAll('[data-trainer-nb-still], [alt^="trainer_nb still "], [title^="trainer_nb still "]')) {
      if (this.means(node) && !this.root.contains(node)) this.hide(this.wrapper(node));
    }
  }

  means(node) {
    const matches = name => (node.getAttribute(name) || "").startsWith("trainer_nb still ") && node.getAttribute(name).slice(17).split(/[\s,;:.]/)[0] === this.id;
    return node.getAttribute("data-trainer-nb-still") === this.id || matches("alt") || matches("title");
  }

  wrapper(node) {
    const found = node.closest(".jp-OutputArea-child, .output_area");
    return found && !found.contains(this.root) ? found : node;
  }

  // Two views may hide the same picture: it is shown again by the last one.
  hide(node) {
    if (this.hidden.has(node)) return;
    this.hidden.add(node);
    node.trainerNbHidden = (node.trainerNbHidden || 0) + 1;
    node.style.setProperty("display", "none", "important");
  }

  giveBack(node) {
    this.hidden.delete(node);
    if (--node.trainerNbHidden <= 0) node.style.removeProperty("display");
  }

  stop() {
    if (this.observer) this.observer.disconnect();
    clearTimeout(this.timer);
    this.observer = null;
    for (const node of [...this.hidden]) this.giveBack(node);
  }
}
