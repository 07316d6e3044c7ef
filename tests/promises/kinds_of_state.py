"""Values of every kind that user code keeps, how each changes at a step, and pictures that compare them completely.

`KINDS` holds them by name; test_exact_state.py puts each into every holder. No code of the package is used here.
"""
import array, collections, copy, copyreg, dataclasses, datetime, decimal, enum, fractions, functools, io, itertools, math, pathlib, random, re
import threading, types

import numpy as np
import pandas as pd
import torch
from torch import nn


# --- what is compared --------------------------------------------------------------------------------------------------

ATOMS = (bool, int, str, bytes, complex, range, slice, type, types.BuiltinFunctionType, types.ModuleType, torch.dtype, torch.device, re.Pattern)


class Picture:
    "Describes a value completely: types, order, bytes, what is one object, and which memory overlaps. Uses no code of the package."
    def __init__(self): self.seen, self.spans = {}, []

    def of(self, v):
        kind = type(v)
        if v is None or kind in (bool, int, str, bytes, complex, range, slice, type, types.BuiltinFunctionType, torch.dtype, torch.device, re.Pattern): return kind.__name__, repr(v)
        if kind is float: return "float", v.hex()
        if isinstance(v, (enum.Enum, fractions.Fraction, decimal.Decimal, datetime.date, datetime.timedelta, pathlib.PurePath, np.dtype)):
            return kind.__name__, repr(v)
        if id(v) in self.seen: return "again", self.seen[id(v)][0]
        self.seen[id(v)] = len(self.seen), v   # which is kept alive
        return kind.__name__, *self.content(v), self.attributes(v)

    def all(self, values): return [self.of(v) for v in values]

    def content(self, v):
        if isinstance(v, torch.Tensor): return self.tensor(v)
        if isinstance(v, np.ndarray): return self.array(v)
        if isinstance(v, np.generic): return v.dtype.str, v.tobytes()
        if isinstance(v, (pd.DataFrame, pd.Series)): return repr(v.axes), repr(getattr(v, "dtypes", None)), v.to_json(double_precision=15)
        if isinstance(v, torch.Generator): return v.get_state().numpy().tobytes(),
        if isinstance(v, np.random.Generator): return self.of(v.bit_generator.state), self.of(v.bit_generator.seed_seq)
        if isinstance(v, np.random.SeedSequence): return repr(v.state),
        if isinstance(v, np.random.RandomState): return self.of(v.get_state()),
        if isinstance(v, random.Random): return repr(v.getstate()),
        if isinstance(v, types.MethodType): return v.__name__, self.of(v.__self__)
        if isinstance(v, types.FunctionType): return v.__qualname__, self.all(c.cell_contents for c in v.__closure__ or ()), self.of(v.__defaults__)
        if isinstance(v, functools.partial): return self.of(v.func), self.of(v.args), self.of(v.keywords)
        if isinstance(v, array.array): return v.typecode, v.tobytes()
        if isinstance(v, (bytearray, io.BytesIO)): return (bytes(v),) if isinstance(v, bytearray) else (v.getvalue(), v.tell())
        if isinstance(v, (collections.abc.Mapping, dict)): return self.all(v.keys()), self.all(v.values()), getattr(getattr(v, "default_factory", None), "__qualname__", None)
        if isinstance(v, (set, frozenset)): return sorted(map(repr, v)),
        if isinstance(v, BaseException): return repr(v),
        if isinstance(v, (list, tuple, collections.deque)): return self.all(v), getattr(v, "maxlen", None)
        if isinstance(v, (int, float, str)): return next(b for b in (int, float, str) if isinstance(v, b)).__repr__(v),
        if isinstance(v, collections.abc.Iterator) and not isinstance(v, types.GeneratorType): return self.all(itertools.islice(copy.deepcopy(v), 4)),
        return ()

    def attributes(self, v):
        if isinstance(v, (pd.DataFrame, pd.Series, functools.partial, types.FunctionType, functools.cached_property)): return ()
        found = {n: getattr(v, n) for n in copyreg._slotnames(type(v)) if hasattr(v, n)}
        # whether a masked array has copied its mask yet
        return [(n, self.of(o)) for n, o in sorted({**getattr(v, "__dict__", {}), **found}.items()) if n != "_sharedmask"]

    def tensor(self, t):
        about = str(t.dtype), str(t.layout), tuple(t.shape), t.requires_grad, t.is_leaf and t.grad is not None and self.of(t.grad)
        if t.layout is torch.sparse_coo: return *about, t.is_coalesced(), self.of(t._indices()), self.of(t._values())
        if t.layout is torch.sparse_csr: return *about, self.of(t.crow_indices()), self.of(t.col_indices()), self.of(t.values())
        if t.numel(): self.span(t.data_ptr(), t.shape, [s * t.itemsize for s in t.stride()], t.itemsize)
        plain = torch.empty(t.numel(), dtype=t.dtype).copy_(t.detach().as_subclass(torch.Tensor).reshape(-1))
        return *about, plain.view(torch.uint8).numpy().tobytes() if t.numel() else b""

    def array(self, a):
        if a.size: self.span(a.__array_interface__["data"][0], a.shape, a.strides, a.itemsize)
        content = self.all(a.ravel().tolist()) if a.dtype.hasobject else a.tobytes()
        return str(a.dtype.descr), a.shape, a.flags.writeable, content, self.of(a.mask.tolist()) if isinstance(a, np.ma.MaskedArray) else ()

    def span(self, start, shape, strides, size):
        reach = [(n - 1) * s for n, s in zip(shape, strides)]
        self.spans.append((start + sum(r for r in reach if r < 0), start + sum(r for r in reach if r > 0) + size))

    def overlaps(self):
        pairs = itertools.combinations(enumerate(self.spans), 2)
        return [(i, j, b[0] - a[0]) for (i, a), (j, b) in pairs if a[0] < b[1] and b[0] < a[1]]


def show(value):
    picture = Picture()
    return picture.of(value), picture.overlaps()


# --- kinds of values ---------------------------------------------------------------------------------------------------

class Phase(enum.Enum): ONE = 1; TWO = 2; THREE = 3

class Switches(enum.Flag): A = 1; B = 2

Point = collections.namedtuple("Point", "n t")

class Later(collections.namedtuple("Later", "n t")): "Appears only during the run."

@dataclasses.dataclass(slots=True)
class Slotted:
    n: int = 0
    t: torch.Tensor = dataclasses.field(default_factory=lambda: torch.zeros(2))

@dataclasses.dataclass(frozen=True)
class Frozen: n: int = 0; more: tuple = ()

class Slots:
    __slots__ = ("n", "late")
    def __init__(self): self.n = 0

class Log(list): total = 0
class Table(dict): total = 0
class Number(int): unit = "a"
class Name(str): "A name."
class Pair(tuple): "A pair."
class Bag(set): total = 0
class Ratio(float): "A ratio."

class Plain:
    def __init__(self, n=0, other=None): self.n, self.other = n, other

class SavesItself:
    "Leaves out a part that it makes anew."
    def __init__(self): self.n, self.lock = 0, io.BytesIO
    def __getstate__(self): return {"n": self.n}
    def __setstate__(self, state): self.n, self.lock = state["n"], io.BytesIO

class Reduces:
    def __init__(self, n): self.n = n
    def __reduce__(self): return Reduces, (self.n,)

class Delegates:
    "Reads what it does not have from another object, also before it has one."
    def __init__(self): self.inner = Plain()
    def __getattr__(self, name): return getattr(self.inner, name)

class Always(Plain):
    "Equal to everything."
    __hash__ = None
    def __eq__(self, other): return True

class Elementwise(Plain):
    "Compares as arrays do."
    __hash__ = None
    def __eq__(self, other): return np.array([True, False])

class Sealed:
    "Cannot be assigned to."
    def __init__(self, n): object.__setattr__(self, "n", n)
    def __setattr__(self, name, value): raise AttributeError(name)

class Cached:
    def __init__(self): self.n = 0
    @functools.cached_property
    def first(self): return self.n + 1

class Dice(random.Random): rolls = 0

class Tagged(torch.Tensor): "A subclass without anything more."

class Recent(dict):
    "Moves what is read to the end: reading its items one by one changes it."
    def __getitem__(self, key):
        value = super().pop(key)
        self[key] = value
        return value

class Falsy(Plain):
    "False, and of no length."
    def __len__(self): return 0

class Uncopied(Plain):
    "A copy of it is itself."
    def __deepcopy__(self, memo): return self
    def __copy__(self): return self

class Resources(Plain):
    "Counts, beside things that are no state."
    def __init__(self): super().__init__(); self.lock, self.module, self.function, self.kind = threading.Lock(), math, math.sin, dict

class Computed(Plain):
    "Its property changes it when it is read."
    @property
    def bump(self): self.n += 100; return self.n

def cells():
    "A function that counts in a variable of its own."
    n = 0
    def count():
        nonlocal n
        n += 1
        return n
    return count

def numbers():
    for i in itertools.count(): yield i * 0.3

def remember(found, x): found.append(x); return len(found)


NOTHING = object()   # returned by a change that makes the value None

@dataclasses.dataclass
class Kind:
    make: object             # returns a new value
    change: object           # changes a value in place, or returns another one
    read: object             # returns a number that depends on the value
    holders: tuple = ()      # the only ones; empty: all

    def advance(self, value):
        changed = self.change(value)
        value = value if changed is None else None if changed is NOTHING else changed
        return value, float(self.read(value))

NO_DATA = ("module", "callback", "learner", "sampler", "loss", "loss_module")

def none(v): "Change nothing: the value is changed by reading it."
def total(v): return float(sum(v))
def attribute(v): return v.n
def more(v): v.n += 1
def draw(v): return v.random()
def mean(v): return v.detach().to(torch.float64).mean() if v.numel() else 0.5
def grow(t): return torch.cat([t, torch.full((1,), t.numel() + 0.5)]) if t.numel() < 3 else t[:0].clone()
def add(t):
    with torch.no_grad(): t += 1

def turn(v):
    "Move the first key of a dict to its end."
    key = next(iter(v))
    v[key] = v.pop(key)

def firsts(v): return sum(n * k for n, k in enumerate(v))

def share(v):
    "Make two entries one list, and at the next step two."
    v["b"] = v["a"] if v["b"] is not v["a"] else list(v["a"])
    v["a"].append(1.0)

def ring():
    one, two = Plain(1), Plain(2)
    one.other, two.other = two, one
    return one

def itself(v=None):
    v = [0]
    v.append(v)
    return v

def window(): return collections.deque(maxlen=3)

def start(): return (lambda first: {"all": [first], "now": first})([0.0])

def begin_another(v):
    "Append to the current list, which is also one of all; every second time begin another."
    v["now"].append(1.0)
    if len(v["now"]) > 2:
        v["now"] = [0.0]
        v["all"].append(v["now"])

def swap(v):
    "Two tensors take turns, and one of them is written."
    v["a"], v["b"] = v["b"], v["a"]
    add(v["a"])

SCALARS = {
    "minus_zero": Kind(lambda: -0.0, lambda v: -v, lambda v: math.copysign(1, v)),
    "nan": Kind(lambda: math.nan, lambda v: 1.0 if v != v else math.nan, lambda v: 2 if v != v else 1),
    "equal_numbers": Kind(lambda: 1, lambda v: {int: True, bool: 1.0, float: 1}[type(v)], lambda v: {int: 1, bool: 2, float: 3}[type(v)]),
    "large_int": Kind(lambda: 10**40, lambda v: v + 1, lambda v: v % 7),
    "complex": Kind(lambda: 1j, lambda v: v * 1j + 0.1, lambda v: v.real),
    "text": Kind(lambda: "a", lambda v: v + "é", len),
    "bytes": Kind(lambda: b"a", lambda v: v + b"\xff", len),
    "none": Kind(lambda: None, lambda v: 0.5 if v is None else NOTHING, lambda v: 1 if v is None else 2),
    "python_random": Kind(lambda: random.Random(1), none, lambda v: v.gauss(0, 1)),
    "numpy_generator": Kind(lambda: np.random.default_rng(1), none, draw),
    "numpy_philox": Kind(lambda: np.random.Generator(np.random.Philox(3)), none, lambda v: v.integers(9, dtype=np.int32)),
    "random_state": Kind(lambda: np.random.RandomState(1), none, lambda v: v.randn()),
    "torch_generator": Kind(lambda: torch.Generator().manual_seed(1), none, lambda v: torch.rand(1, generator=v)),
    "list": Kind(list, lambda v: v.append(len(v) + 0.5), total),
    "dict": Kind(dict, lambda v: v.update({len(v): 0.5}), lambda v: total(v.values())),
    "set": Kind(set, lambda v: v.add(len(v)), len),
    "nested_tuples": Kind(lambda: (1, (2, [3])), lambda v: (v[0] + 1, (v[1][0], [*v[1][1], 1])), lambda v: v[0] + total(v[1][1])),
}

OBJECTS = {
    "enum": Kind(lambda: Phase.ONE, lambda v: Phase(v.value % 3 + 1), lambda v: v.value),
    "flag": Kind(lambda: Switches.A, lambda v: v ^ (Switches.A | Switches.B), lambda v: v.value),
    "fraction": Kind(lambda: fractions.Fraction(1, 3), lambda v: v + fractions.Fraction(1, 7), float),
    "decimal": Kind(lambda: decimal.Decimal("0.1"), lambda v: v + decimal.Decimal("0.1"), float),
    "date": Kind(lambda: datetime.datetime(2026, 1, 1), lambda v: v + datetime.timedelta(days=1), lambda v: v.day),
    "path": Kind(lambda: pathlib.PurePosixPath("a"), lambda v: v / "b", lambda v: len(v.parts)),
    "range": Kind(lambda: range(2), lambda v: range(len(v) + 1), len),
    "numpy_scalar": Kind(lambda: np.float32(0.1), lambda v: v + np.float32(0.1), float),
    "numpy_float": Kind(lambda: np.float64(0.1), lambda v: v + 0.1, lambda v: float(v) + isinstance(v, np.float64)),
    "bytearray": Kind(lambda: bytearray(b"a"), lambda v: v.append(200), len),
    "array_module": Kind(lambda: array.array("f", [0.1]), lambda v: v.append(len(v) * 0.3), sum),
    "namedtuple": Kind(lambda: Point(0, torch.zeros(2)), lambda v: Point(v.n + 1, v.t + 1), lambda v: v.n + mean(v.t)),
    "namedtuple_later": Kind(window, lambda v: v.append(Later(len(v), torch.ones(1) * len(v))), lambda v: v[-1].n + mean(v[0].t)),
    "namedtuple_in_place": Kind(lambda: Point([0], torch.zeros(2)), lambda v: add(v.t), lambda v: mean(v.t)),
    "slots_dataclass": Kind(Slotted, lambda v: (more(v), add(v.t))[0], lambda v: v.n + mean(v.t)),
    "slots_replaced": Kind(Slotted, lambda v: Slotted(v.n + 1, v.t + 1), attribute),
    "slots": Kind(Slots, lambda v: (more(v), setattr(v, "late", v.n * 0.5))[0], lambda v: v.n + v.late),
    "frozen": Kind(Frozen, lambda v: Frozen(v.n + 1, (*v.more, v)), lambda v: v.n + len(v.more)),
    "frozen_as_key": Kind(lambda: {Frozen(): 0.1}, lambda v: v.update({Frozen(len(v)): 0.2}), lambda v: total(v.values())),
    "keys": Kind(lambda: {(1, "a"): 1, Phase.ONE: 2}, lambda v: v.update({(len(v), Phase.TWO): 3, None: len(v)}), lambda v: total(v.values())),
    "list_subclass": Kind(Log, lambda v: (v.append(1), setattr(v, "total", v.total + len(v)))[0], lambda v: v.total),
    "dict_subclass": Kind(Table, lambda v: (v.update({len(v): 1}), setattr(v, "total", v.total + len(v)))[0], lambda v: v.total),
    "set_subclass": Kind(Bag, lambda v: (v.add(len(v)), setattr(v, "total", v.total + len(v)))[0], lambda v: v.total),
    "int_subclass": Kind(lambda: Number(1), lambda v: Number(v + 1), lambda v: v + isinstance(v, Number)),
    "str_subclass": Kind(lambda: Name("a"), lambda v: Name(v + "b"), lambda v: len(v) + isinstance(v, Name)),
    "float_subclass": Kind(lambda: Ratio(0.1), lambda v: Ratio(v + 0.1), lambda v: v + isinstance(v, Ratio)),
    "tuple_subclass": Kind(lambda: Pair((1, 2)), lambda v: Pair((v[1], v[0] + 2)), lambda v: v[0] + isinstance(v, Pair)),
    "deque": Kind(window, lambda v: v.append(len(v) + total(v)), total),
    "counter": Kind(collections.Counter, lambda v: v.update([len(v), 0]), lambda v: v[0]),
    "defaultdict": Kind(lambda: collections.defaultdict(list), lambda v: v[len(v) // 2].append(0.5), lambda v: len(v) + len(v[0])),
    "ordered_lru": Kind(lambda: collections.OrderedDict((i, i) for i in range(4)), lambda v: v.move_to_end(next(iter(v))), firsts),
    "dict_order": Kind(lambda: {i: i for i in range(4)}, turn, firsts),
    "chain_map": Kind(lambda: collections.ChainMap({}, {9: 1}), lambda v: v.update({len(v): 1}), len),
    "user_dict": Kind(collections.UserDict, lambda v: v.update({len(v): 1}), len),
    "frozenset": Kind(lambda: frozenset([1]), lambda v: v | {len(v) + 1}, len),
    "shared_lists": Kind(lambda: {"a": [0.0], "b": [1.0]}, share, lambda v: 10 * total(v["b"]) + total(v["a"])),
    "self_reference": Kind(itself, lambda v: v.insert(0, len(v)), lambda v: v[0] + (v[-1] is v)),
    "ring": Kind(ring, lambda v: more(v.other.other), lambda v: v.n + (v.other.other is v)),
    "object": Kind(Plain, lambda v: (more(v), setattr(v, "other", [v.n]))[0], attribute),
    "namespace": Kind(lambda: types.SimpleNamespace(n=0), more, attribute),
    "saves_itself": Kind(SavesItself, more, attribute),
    "reduces": Kind(lambda: Reduces(0), more, attribute),
    "delegates": Kind(Delegates, lambda v: more(v.inner), attribute),
    "always_equal": Kind(Always, lambda v: Always(v.n + 1), attribute),
    "compares_as_an_array": Kind(Elementwise, lambda v: Elementwise(v.n + 1), attribute),
    "sealed": Kind(lambda: Sealed(0), lambda v: Sealed(v.n + 1), attribute),
    "cached_property": Kind(Cached, more, lambda v: v.n + v.first),
    "random_subclass": Kind(lambda: Dice(1), lambda v: setattr(v, "rolls", v.rolls + 1), lambda v: v.random() + v.rolls),
    "numpy_spawned": Kind(lambda: np.random.default_rng(1), none, lambda v: v.spawn(1)[0].random()),
    "seed_sequence": Kind(lambda: np.random.SeedSequence(1), none, lambda v: v.spawn(1)[0].generate_state(1)[0] % 97),
    "generators_in_a_dict": Kind(lambda: {0: np.random.default_rng(1), "a": [random.Random(2)]}, none, lambda v: draw(v[0]) + draw(v["a"][0])),
    "sobol": Kind(lambda: torch.quasirandom.SobolEngine(1, scramble=True, seed=1), none, lambda v: v.draw(1)),
    "partial": Kind(lambda: functools.partial(remember, []), none, lambda v: v(1)),
    "bound_method": Kind(lambda: Plain([]).__init__, none, lambda v: (v(len(v.__self__.n) * [1] + [1]), len(v.__self__.n))[1]),
    "config": Kind(lambda: types.SimpleNamespace(n=0, nested={"a": 1}), lambda v: (more(v), v.nested.update(a=v.n))[0], attribute),
}

TENSORS = {
    "tensor_in_place": Kind(lambda: torch.zeros(2), add, mean),
    "tensor_replaced": Kind(lambda: torch.zeros(2), lambda v: v + 1, mean),
    "tensor_of_no_dimension": Kind(lambda: torch.tensor(0.0), add, mean),
    "tensor_bfloat16": Kind(lambda: torch.zeros(3, dtype=torch.bfloat16), add, mean),
    "tensor_bool": Kind(lambda: torch.tensor([True, False]), lambda v: v.logical_xor_(torch.tensor([True, True])), lambda v: v[0]),
    "tensor_int64": Kind(lambda: torch.tensor([2**60]), add, lambda v: int(v) % 7),
    "tensor_minus_zero": Kind(lambda: torch.zeros(2), lambda v: v.neg_(), lambda v: torch.copysign(torch.ones(2), v).mean()),
    "tensor_nan": Kind(lambda: torch.tensor([math.nan, 0.0]), lambda v: v.flip(0), lambda v: v.isnan().float()[0]),
    "tensor_strided": Kind(lambda: torch.arange(10.0)[::2], add, mean),
    "tensor_expanded": Kind(lambda: torch.zeros(1).expand(4), lambda v: v[:1].add_(1), mean),
    "tensor_conjugate": Kind(lambda: torch.complex(torch.ones(2), torch.ones(2)).conj(), lambda v: v.add_(0.3j), lambda v: v.imag.mean()),
    "tensor_negative": Kind(lambda: torch.complex(torch.ones(2), torch.ones(2)).conj().imag, add, mean),
    "tensor_transposed": Kind(lambda: torch.zeros(2, 3).t(), lambda v: v[:1].add_(1), mean),
    "tensor_empty": Kind(lambda: torch.empty(0), grow, mean),
    "tensor_longer": Kind(lambda: torch.zeros(1), lambda v: torch.cat([v, v + 1]), mean),
    "tensor_resized": Kind(lambda: torch.zeros(1), lambda v: v.resize_(v.numel() + 1).fill_(v.numel()), mean),
    "tensor_dtype": Kind(lambda: torch.ones(1), lambda v: (v + 1).to({torch.float32: torch.float64, torch.float64: torch.float32}[v.dtype]),
                         lambda v: mean(v) * v.itemsize),
    "tensor_sparse": Kind(lambda: torch.eye(2).to_sparse(), lambda v: (v + v).coalesce(), lambda v: v.to_dense().sum()),
    "tensor_sparse_csr": Kind(lambda: torch.eye(2).to_sparse_csr(), lambda v: v * 1.5, lambda v: v.to_dense().sum()),
    "tensor_subclass": Kind(lambda: torch.zeros(2).as_subclass(Tagged), add, lambda v: mean(v) + isinstance(v, Tagged)),
}

MORE_TENSORS = {
    "requires_grad": Kind(lambda: torch.ones(2, requires_grad=True), lambda v: v.requires_grad_(not v.requires_grad), lambda v: v.requires_grad),
    "gradient": Kind(lambda: torch.ones(2, requires_grad=True), lambda v: (v * v).sum().backward(), lambda v: mean(v.grad)),
    "parameters_in_a_list": Kind(lambda: [nn.Parameter(torch.zeros(2))], lambda v: add(v[0]), lambda v: mean(v[0])),
    "view_and_base": Kind(lambda: (lambda t: [t, t[1:3]])(torch.zeros(4)), lambda v: add(v[1]), lambda v: mean(v[0])),
    "one_tensor_twice": Kind(lambda: (lambda t: {"a": t, "b": t})(torch.zeros(2)), lambda v: v.update(b=v["a"] + v["b"] + 1), lambda v: mean(v["b"]) + mean(v["a"])),
    "numpy_and_torch": Kind(lambda: (lambda a: [a, torch.from_numpy(a)])(np.zeros(3)), lambda v: add(v[1]), lambda v: v[0].mean()),
    "tensors_in_a_deque": Kind(window, lambda v: v.append((torch.full((2,), float(len(v))), len(v))), lambda v: mean(v[0][0]) + len(v)),
    "tensor_attribute": Kind(lambda: torch.zeros(1), lambda v: setattr(v, "n", getattr(v, "n", 0) + 1), attribute),
    "packed_sequence": Kind(lambda: nn.utils.rnn.pack_sequence([torch.ones(2)]), lambda v: v._replace(data=v.data + 1), lambda v: mean(v.data)),
    "distribution": Kind(lambda: torch.distributions.Normal(torch.zeros(1), 1.0), lambda v: torch.distributions.Normal(v.loc + 1, 1.0), lambda v: mean(v.loc)),
    "array": Kind(lambda: np.zeros(2), add, lambda v: v.mean()),
    "array_replaced": Kind(lambda: np.zeros(2, np.float16), lambda v: v + 1, lambda v: v.mean()),
    "array_structured": Kind(lambda: np.zeros(2, [("a", "f4"), ("b", "i8", 2)]), lambda v: (add(v["a"]), add(v["b"]))[0], lambda v: v["a"].sum() + v["b"].sum()),
    "array_record": Kind(lambda: np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]), lambda v: add(v.b), lambda v: v.b[0]),
    "array_text": Kind(lambda: np.array(["a", "bc"]), lambda v: np.char.add(v, "d"), lambda v: len(v[0])),
    "array_bytes": Kind(lambda: np.array([b"a", b"b"], "S9"), lambda v: v.__setitem__(0, v[0] + b"d"), lambda v: len(v[0])),
    "array_objects": Kind(lambda: np.array([1, "a", None], object), lambda v: v.__setitem__(0, v[0] + 1), lambda v: v[0]),
    "array_dates": Kind(lambda: np.array(["2026-01-01"], "datetime64[D]"), lambda v: v + 1, lambda v: int(v[0].astype(int)) % 9),
    "array_empty": Kind(lambda: np.empty(0), lambda v: np.append(v, 1.0) if v.size < 2 else v[:0].copy(), lambda v: v.size),
    "array_of_no_dimension": Kind(lambda: np.zeros(()), add, float),
    "array_fortran": Kind(lambda: np.zeros((2, 3), order="F"), lambda v: add(v[0]), lambda v: v.mean()),
    "array_reversed": Kind(lambda: np.arange(6.0)[::-2], lambda v: add(v[:1]), lambda v: v.mean()),
    "array_view_and_base": Kind(lambda: (lambda a: [a, a[1:]])(np.zeros(3)), lambda v: add(v[1]), lambda v: v[0].mean()),
    "array_read_only": Kind(lambda: np.broadcast_to(np.zeros(1), 3), lambda v: np.broadcast_to(v[:1] + 1, 3), lambda v: v.mean()),
    "array_masked": Kind(lambda: np.ma.masked_equal([1.0, 2.0, 3.0], 2.0), lambda v: np.ma.masked_equal(v + 1, 2.0), lambda v: v.sum()),
}

LIBRARIES = {
    "frame": Kind(lambda: pd.DataFrame({"a": [0.0, 1.0], "b": ["x", "y"]}), lambda v: v.__setitem__("a", v["a"] + 1), lambda v: v["a"].sum()),
    "frame_grows": Kind(lambda: pd.DataFrame({"a": [0.0]}), lambda v: v.loc.__setitem__(len(v), [len(v) * 0.5]), lambda v: v["a"].sum()),
    "series": Kind(lambda: pd.Series(["x", "y"], dtype="category"), lambda v: v[::-1].reset_index(drop=True), lambda v: v[0] == "x"),
    "bytes_io": Kind(io.BytesIO, lambda v: v.write(b"a") and None, lambda v: v.tell()),
    "count": Kind(itertools.count, none, next),
    "cycle": Kind(lambda: itertools.cycle([0.1, 0.7, 0.4]), none, next),
    "list_iterator": Kind(lambda: iter([i * 0.3 for i in range(99)]), none, next),
    "enumerate": Kind(lambda: enumerate([i * 0.3 for i in range(99)]), none, lambda v: sum(next(v))),
    "map": Kind(lambda: map(abs, range(-50, 0)), none, next),
    "dict_iterator": Kind(lambda: iter({i: 0 for i in range(99)}), none, next),
    "generator_function": Kind(numbers, none, next),
    "closure": Kind(cells, none, lambda v: v()),
    "function_with_a_list": Kind(lambda: lambda x, found=[]: remember(found, x), none, lambda v: v(1)),
    # what a data set or a collator has in a cache is data
    "lru_cache": Kind(lambda: functools.lru_cache(Plain), lambda v: more(v(0)), lambda v: v(0).n, NO_DATA),
}

VARIANTS = {
    "minus_zero_in_a_list": Kind(lambda: [-0.0], lambda v: [-v[0]], lambda v: math.copysign(1, v[0])),
    "minus_zero_in_place": Kind(lambda: {"a": [-0.0]}, lambda v: v["a"].append(-v["a"].pop()), lambda v: math.copysign(1, v["a"][0])),
    "equal_numbers_in_a_dict": Kind(lambda: {"a": 1}, lambda v: v.update(a={int: True, bool: 1.0, float: 1}[type(v["a"])]),
                                    lambda v: {int: 1, bool: 2, float: 3}[type(v["a"])]),
    "nan_in_a_tuple": Kind(lambda: (math.nan, 1), lambda v: (v[0], v[1] + 1), lambda v: v[1]),
    # in a data set or a collator, a container of more than 2,000 items is data
    "long_list": Kind(lambda: [0] * 3000, lambda v: v.__setitem__(1500, v[1500] + 1), lambda v: v[1500], NO_DATA),
    "long_deque_of_tensors": Kind(lambda: collections.deque(torch.full((1,), float(i)) for i in range(40)), lambda v: v.rotate(1), lambda v: mean(v[0])),
    "longer_window": Kind(window, lambda v: collections.deque([*v, len(v)], v.maxlen + 1), lambda v: v.maxlen + len(v)),
    "current_of_a_list": Kind(start, begin_another, lambda v: total(v["now"]) + 10 * total(v["all"][-1]) + total(v["all"][0])),
    "two_tensors_take_turns": Kind(lambda: {"a": torch.zeros(1), "b": torch.ones(1)}, swap, lambda v: mean(v["a"]) - 3 * mean(v["b"])),
    "tensors_in_turn": Kind(lambda: [torch.full((1,), float(i)) for i in range(3)], lambda v: [v[1], v[2], v[0].add_(1)], lambda v: mean(v[0])),
    "reading_changes_it": Kind(lambda: Recent({i: i for i in range(4)}), lambda v: (v[next(iter(v))], None)[1], firsts),
    "computed": Kind(Computed, more, attribute),
    "falsy": Kind(Falsy, more, attribute),
    "falsy_replaced": Kind(Falsy, lambda v: Falsy(v.n + 1), attribute),
    "uncopied": Kind(Uncopied, more, attribute),
    "resources": Kind(Resources, more, attribute),
    "numpy_keys": Kind(lambda: {np.int64(1): np.bool_(True)}, lambda v: v.update({np.int64(len(v) + 1): np.float32(len(v))}), lambda v: total(v.values())),
    "dtype": Kind(lambda: torch.float32, lambda v: torch.float64 if v is torch.float32 else torch.float32, lambda v: v.itemsize),
    "class": Kind(lambda: int, lambda v: float if v is int else int, lambda v: 1 if v is int else 2),
    "function": Kind(lambda: math.sin, lambda v: math.cos if v is math.sin else math.sin, lambda v: v(1)),
    "exception": Kind(lambda: ValueError(0), lambda v: ValueError(v.args[0] + 1), lambda v: v.args[0]),
    "pattern": Kind(lambda: re.compile("a"), lambda v: re.compile(v.pattern + "b"), lambda v: len(v.pattern)),
    "default_factory": Kind(lambda: collections.defaultdict(lambda: [0]), lambda v: v[len(v)].append(1), lambda v: len(v) + total(v[0])),
    "size": Kind(lambda: torch.Size([1]), lambda v: torch.Size([*v, 2]), len),
    "generators_shared": Kind(lambda: (lambda g: [g, g])(random.Random(1)), none, lambda v: v[0].random() + v[1].random()),
    "generator_replaced": Kind(lambda: np.random.default_rng(1), lambda v: np.random.default_rng(v.integers(99)), draw),
}

KINDS = SCALARS | OBJECTS | TENSORS | MORE_TENSORS | VARIANTS | LIBRARIES
MAY_BE_NAMED = {*LIBRARIES, "tensor_sparse", "tensor_sparse_csr", "tensor_attribute", "array_masked", "bound_method", "partial", "distribution", "class", "function", "exception", "pattern",
                "default_factory", "uncopied"}
COMMON = set("""minus_zero equal_numbers bytes python_random numpy_generator torch_generator list dict set nested_tuples enum fraction namedtuple
    namedtuple_later slots_dataclass list_subclass dict_subclass int_subclass deque ordered_lru dict_order shared_lists self_reference object
    numpy_spawned config tensor_in_place tensor_replaced tensor_strided tensor_expanded tensor_conjugate tensor_empty tensor_resized
    tensor_sparse requires_grad view_and_base array array_structured array_text array_empty array_view_and_base frame count
    list_iterator""".split())
