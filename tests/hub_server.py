"A small Hub on 127.0.0.1: repositories with branches and commits, uploads as LFS, downloads. It keeps everything in memory."
import base64, hashlib, json, re, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

TOKEN = "hf_secret"


class Made(NamedTuple):
    "A commit: where, its message, and the files that it has changed."
    repo: str
    revision: str
    message: str
    paths: list


LFS = (".safetensors", ".bin", ".pt", ".pth")


def oid_of(path, content):
    "What the Hub names a file by: its SHA-256 in LFS, else git's hash."
    return hashlib.sha256(content).hexdigest() if path.endswith(LFS) else hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class HubServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"
        self.trees, self.commits, self.blobs, self.private, self.requests = {}, [], {}, {}, []
        self.snapshots = {}                             # commit: files
        self.fail = lambda method, path: None           # returns a status to answer with
        self.gate = threading.Event()                   # commits wait for it
        self.gate.set()
        self.arrived = threading.Event()                # a commit has arrived at the gate
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def files(self, repo, revision="main"): return dict(self.trees[repo][revision])

    def messages(self): return [c.message for c in self.commits]

    def sha(self, repo, revision):
        if revision in self.snapshots: return revision
        tree = self.trees[repo][revision]
        sha = hashlib.sha1(json.dumps([repo, sorted((p, oid_of(p, c)) for p, c in tree.items())]).encode()).hexdigest()
        self.snapshots[sha] = dict(tree)
        return sha

    def close(self):
        self.gate.set()
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16                                  # head and body in one packet
    disable_nagle_algorithm = True

    def log_message(self, *args): pass

    def answer(self, status, body=None, headers={}, length=None):
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items(): self.send_header(name, value)
        self.send_header("Content-Length", str(len(content) if length is None else length))
        self.end_headers()
        if self.command != "HEAD": self.wfile.write(content)
        self.wfile.flush()

    def handle_request(self):
        hub, path = self.server, unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        hub.requests.append((self.command, path))
        if (status := hub.fail(self.command, path)) is not None: return self.answer(status, {"error": "as the test wants it"})
        if self.headers.get("Authorization") not in (f"Bearer {TOKEN}", None) or (self.command == "POST" and "Authorization" not in self.headers):
            return self.answer(401, {"error": "Invalid credentials"}, {"X-Error-Message": "Invalid credentials in Authorization header"})
        for method, pattern, act in ROUTES:
            if method == self.command and (match := re.fullmatch(pattern, path)): return act(self, body, *match.groups())
        self.answer(404, {"error": f"no route {self.command} {path}"})

    do_GET = do_POST = do_PUT = do_HEAD = handle_request

    def tree(self, repo, revision):
        hub = self.server
        if repo not in hub.trees: return self.answer(404, {"error": "no repository"}, {"X-Error-Code": "RepoNotFound"})
        tree = hub.trees[repo].get(revision, hub.snapshots.get(revision))
        if tree is None: self.answer(404, {"error": "no revision"}, {"X-Error-Code": "RevisionNotFound"})
        return tree

    def whoami(self, body): self.answer(200, {"type": "user", "name": "me", "orgs": []})

    def create(self, body):
        given = json.loads(body)
        repo = f"{given.get('organization') or 'me'}/{given['name']}"
        url = {"url": f"{self.server.endpoint}/{repo}", "name": repo, "id": repo}
        if repo in self.server.trees: return self.answer(409, url)
        self.server.trees[repo], self.server.private[repo] = {"main": {}}, given.get("visibility") == "private"
        self.answer(200, url)

    def branch(self, body, repo, name):
        if name in self.server.trees[repo]: return self.answer(409, {"error": "Reference already exists"})
        self.server.trees[repo][name] = dict(self.server.trees[repo]["main"])
        self.answer(200, {})

    def info(self, body, repo, revision=None):
        if (tree := self.tree(repo, revision or "main")) is None: return
        self.answer(200, {"id": repo, "modelId": repo, "sha": self.server.sha(repo, revision or "main"), "private": False,
                          "siblings": [{"rfilename": p} for p in sorted(tree)], "tags": []})

    def list(self, body, repo, revision):
        if (tree := self.tree(repo, revision)) is None: return
        self.answer(200, [{"type": "file", "path": p, "size": len(c), "oid": oid_of(p, c)} for p, c in sorted(tree.items())])

    def preupload(self, body, repo, revision):
        if (tree := self.tree(repo, revision)) is None: return
        files = json.loads(body)["files"]
        self.answer(200, {"files": [{"path": f["path"], "uploadMode": "lfs" if f["path"].endswith(LFS) else "regular",
                                     "shouldIgnore": False, "oid": oid_of(f["path"], tree[f["path"]]) if f["path"] in tree else None} for f in files]})

    def batch(self, body, repo):
        objects = [{**o, "actions": {"upload": {"href": f"{self.server.endpoint}/lfs/{o['oid']}"}}} for o in json.loads(body)["objects"]]
        self.answer(200, {"transfer": "basic", "objects": objects})

    def put(self, body, oid):
        if hashlib.sha256(body).hexdigest() != oid: return self.answer(422, {"error": "the file has changed while it was uploaded"})
        self.server.blobs[oid] = body
        self.answer(200, {})

    def commit(self, body, repo, revision):
        hub = self.server
        hub.arrived.set()
        hub.gate.wait(60)
        if (tree := self.tree(repo, revision)) is None: return
        lines = [json.loads(line) for line in body.splitlines()]
        changed = {}
        for line in lines[1:]:
            value = line["value"]
            changed[value["path"]] = base64.b64decode(value["content"]) if line["key"] == "file" else hub.blobs[value["oid"]]
        with hub.lock:
            tree.update(changed)
            hub.commits.append(Made(repo, revision, lines[0]["value"]["summary"], sorted(changed)))
            sha = hub.sha(repo, revision)
        self.answer(200, {"commitUrl": f"{hub.endpoint}/{repo}/commit/{sha}", "commitOid": sha, "hookOutput": "", "success": True})

    def resolve(self, body, repo, revision, path):
        if (tree := self.tree(repo, revision)) is None: return
        if path not in tree: return self.answer(404, {"error": "no file"}, {"X-Error-Code": "EntryNotFound"})
        headers = {"ETag": f'"{oid_of(path, tree[path])}"', "X-Repo-Commit": self.server.sha(repo, revision)}
        self.answer(200, tree[path], headers)

    def validate(self, body): self.answer(200, {"errors": [], "warnings": []})


REPO = r"([\w.-]+/[\w.-]+)"
ROUTES = [
    ("GET", "/api/whoami-v2", Handler.whoami), ("POST", "/api/repos/create", Handler.create), ("POST", "/api/validate-yaml", Handler.validate),
    ("POST", f"/api/models/{REPO}/branch/(.+)", Handler.branch), ("GET", f"/api/models/{REPO}", Handler.info),
    ("GET", f"/api/models/{REPO}/revision/(.+)", Handler.info), ("GET", f"/api/models/{REPO}/tree/([^/]+)", Handler.list),
    ("POST", f"/api/models/{REPO}/preupload/(.+)", Handler.preupload), ("POST", f"/{REPO}.git/info/lfs/objects/batch", Handler.batch),
    ("PUT", "/lfs/(.+)", Handler.put), ("POST", f"/api/models/{REPO}/commit/(.+)", Handler.commit),
    ("GET", f"/{REPO}/resolve/([^/]+)/(.+)", Handler.resolve), ("HEAD", f"/{REPO}/resolve/([^/]+)/(.+)", Handler.resolve),
]
