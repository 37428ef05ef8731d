// For the site of `make docs` opened from the disk, where a browser starts no Worker: the search's script runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(address) {
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.frame = frame;
      frame.contentWindow.postMessage = (data) => setTimeout(() => this.onmessage?.({ data: structuredClone(data) }));
      this.ready = new Promise((resolve) => {
        const script = frame.contentDocument.createElement("script");
        Object.assign(script, { src: new URL(address, location), onload: resolve, onerror: (event) => this.onerror?.(event) });
        frame.contentDocument.body.append(script);
      });
    }
    postMessage(data) {
      const copy = structuredClone(data);
      this.ready.then(() => this.frame.contentWindow?.onmessage({ data: copy }));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
