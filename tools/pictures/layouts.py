"""Where everything lies in the pictures, by hand: per architecture its structure, one round in time, and a card of the overview.

Names of functions are those of the tree. Bytes, seconds and counts are names of figures, never numbers.
"""

from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from tools.pictures.drawing import Kind

Channel = Literal["tensors", "bus", "objects"]
CHANNEL_OF: dict[Kind, Channel] = {"database": "tensors", "broker": "bus", "bucket": "objects"}
# Templates hold these too; they guard, publish and permit, and no round passes through them.
NOT_DRAWN = (
    "AWS::Budgets::Budget",
    "AWS::Events::Rule",
    "AWS::IAM::",
    "AWS::Lambda::LayerVersion",
    "AWS::Lambda::Permission",
    "AWS::Logs::",
    "AWS::S3::BucketPolicy",
    "AWS::SSM::Parameter",
    "AWS::Scheduler::",
    "AWS::SecretsManager::",
    "AWS::EC2::SecurityGroup",
    "AWS::EC2::LaunchTemplate",
    "AWS::CloudFormation::",
    "Custom::S3AutoDeleteObjects",
)


@dataclass(frozen=True)
class Box:
    """A box of a structure picture: a function, or a program on instances. `name`: its title; `kind`: which icon it has; `y`: its upper
    edge in pixels; `note`: text under the name; `starts`: names of the state machines that a program starts.
    """

    name: str
    y: float
    note: str
    kind: Kind = "function"
    starts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Frame:
    """A frame around boxes in a structure picture: steps that a state machine runs together or repeats. `label`: text in it, with
    placeholders of `fill_in`; `depth`: nesting level; `top`, `bottom`: edges in pixels; `steps`: names of the boxes in it; `machine`: name
    of the state machine, if a program starts it.
    """

    label: str
    depth: int
    top: float
    bottom: float
    steps: tuple[str, ...]
    machine: str = ""


@dataclass(frozen=True)
class Store:
    """A store in a structure picture, with a vertical line on which dots mark the functions that use it. `kind`: which icon it has; `x`:
    position of the line in pixels; `note`: text under the name.
    """

    kind: Kind
    x: float
    note: str


@dataclass(frozen=True)
class Structure:
    """The layout of an architecture's structure picture. `height`: in pixels; `boxes`: functions and programs in the order of the tree;
    `frames`, `stores`: around and beside them.
    """

    height: int
    boxes: tuple[Box, ...]
    frames: tuple[Frame, ...]
    stores: tuple[Store, ...]


@dataclass(frozen=True)
class Lane:
    """A vertical line for one participant in the picture of a round. `x`: its position in pixels; `rank`: number of the worker, -1 for a
    store; `sketched`: whether only some of its arrows are drawn, because another worker's show the rest.
    """

    name: str
    x: float
    kind: Kind
    label: str
    rank: int = -1
    sketched: bool = False


@dataclass(frozen=True)
class Arrow:
    """An arrow in the picture of a round: bytes or a message that move from the lane `source` to the lane `target`. `row`: vertical
    position; `text`: written above it; `size`: what one item is, a key of SIZES; `count`: how many items, a key of `Figures.counts`; `by`:
    step that moves them.
    """

    row: float
    source: str
    target: str
    text: str
    size: str
    by: str
    count: str = "once"


@dataclass(frozen=True)
class Bar:
    """A bar on a lane in the picture of a round: time spent on work, or on a wait. `lane`: name of the lane; `text`: written on it; `row`:
    vertical position; `rows`: height in rows; `by`: step that it belongs to; `stages`: stages whose simulated seconds, added up, are
    written on it; `wait`: whether it is a wait; `width`: in pixels.
    """

    row: float
    lane: str
    text: str
    by: str
    stages: tuple[str, ...] = ()
    wait: bool = False
    rows: float = 1
    width: float = 124


@dataclass(frozen=True)
class Round:
    """The layout of the picture of one round. Time runs from top to bottom; `rows`: number of rows; `lanes`, `arrows`, `bars`: what is
    drawn.
    """

    rows: float
    lanes: tuple[Lane, ...]
    arrows: tuple[Arrow, ...]
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Card:
    """The layout of an architecture's small picture on the overview.

    `icons`: (kind, x, y) of each icon; `lines`, `messages`: pairs of icon numbers that a line or a dashed line connects; `averages`:
    sentence on who averages; `sums`: numbers of the icons that average, which get the text `sign`.
    """

    icons: tuple[tuple[Kind, float, float], ...]
    lines: tuple[tuple[int, int], ...]
    messages: tuple[tuple[int, int], ...]
    averages: str
    sums: tuple[int, ...]
    sign: str = "\u03a3"


@dataclass(frozen=True)
class Layout:
    """The layouts of all pictures of one architecture. `name`: name of its example in config/; `title`: title of its card; `finding`: title
    of the structure picture; `timing`: title of the picture of a round.
    """

    name: str
    title: str
    finding: str
    timing: str
    structure: Structure
    round: Round
    card: Card


Drawn = TypeVar("Drawn", Arrow, Bar)
DATABASE_X, BROKER_X, BUCKET_X = 458.0, 594.0, 728.0


def _place_stores(database: str = "", broker: bool = False) -> tuple[Store, ...]:
    """Return the stores of a structure picture at their usual positions, from left to right: database and broker if asked for, and always
    the bucket. `database`: text under the tensor database, "" for no database; `broker`: whether there is a broker.
    """
    return (
        *([Store("database", DATABASE_X, database)] if database else []),
        *([Store("broker", BROKER_X, "Amazon MQ, shared")] if broker else []),
        Store("bucket", BUCKET_X, "data and checkpoints"),
    )


def _place_workers(kind: Kind) -> tuple[tuple[Kind, float, float], ...]:
    """Return (kind, x, y) of four worker icons in a row at the top of a card. `kind`: what a worker is, such as "function"."""
    return tuple((kind, x, 8) for x in (20, 76, 132, 188))


def _for_both(of_first: Drawn) -> tuple[Drawn, Drawn]:
    """Return the arrow or bar `of_first` of the first worker or peer, and its copy for the second one, in which every " 0" in names and
    texts is " 1".
    """
    texts = {name: value.replace(" 0", " 1") for name, value in vars(of_first).items() if isinstance(value, str)}
    return of_first, replace(of_first, **texts)


_SPIRT = (
    "initialise",
    "compute_gradients",
    "average_in_database",
    "notify_peers",
    "check_peers",
    "aggregate_peers",
    "update_model",
    "detect_convergence",
    "collect",
)

SPIRT = Layout(
    "spirt",
    "SPIRT",
    "SPIRT: each worker's own database averages and updates",
    "SPIRT: all minibatches at once, then one exchange of averages",
    Structure(
        690,
        (
            Box("initialise", 112, "same model into every database"),
            Box("compute_gradients", 206, "one minibatch's gradient into the database"),
            Box("average_in_database", 262, "the module averages where vectors lie"),
            Box("notify_peers", 308, "this worker's average is ready"),
            Box("check_peers", 376, "have all reported?"),
            Box("aggregate_peers", 432, "copies of the peers' averages, combined"),
            Box("update_model", 478, "next state, inside the database"),
            Box("detect_convergence", 524, "after an epoch: evaluates, decides"),
            Box("collect", 584, "trained model into the bucket"),
        ),
        (
            Frame("state machine of the run", 0, 62, 634, _SPIRT),
            Frame("{workers} workers side by side, round after round", 1, 160, 572, _SPIRT[1:-1]),
            Frame("{minibatches} minibatches side by side", 2, 183, 252, ("compute_gradients",)),
            Frame("until all {workers} have reported; each polls up to 1 s", 2, 354, 422, ("check_peers",)),
        ),
        _place_stores("one host per worker: {hosts}", broker=True),
    ),
    Round(
        14,
        (
            Lane("bucket", 60, "bucket", "bucket"),
            Lane("worker 0", 200, "function", "worker 0", 0),
            Lane("database 0", 340, "database", "database 0"),
            Lane("broker", 460, "broker", "broker"),
            Lane("database 1", 580, "database", "database 1"),
            Lane("worker 1", 715, "function", "worker 1 (2, 3 alike)", 1, True),
        ),
        (
            *_for_both(Arrow(0, "database 0", "worker 0", "model", "model", "compute_gradients", "minibatches")),
            Arrow(1, "bucket", "worker 0", "minibatch", "minibatch", "compute_gradients", "minibatches"),
            *_for_both(Arrow(3, "worker 0", "database 0", "gradient", "gradient", "compute_gradients", "minibatches")),
            Arrow(5, "worker 0", "broker", "ready", "message", "notify_peers"),
            Arrow(6, "worker 1", "broker", "ready, later", "message", "notify_peers"),
            *_for_both(Arrow(7, "broker", "worker 0", "all have reported", "message", "check_peers")),
            Arrow(8, "database 1", "worker 0", "average of each peer", "average", "aggregate_peers", "others"),
            *_for_both(Arrow(9, "worker 0", "database 0", "copy", "average", "aggregate_peers", "others")),
            *_for_both(Arrow(12, "database 0", "worker 0", "model", "model", "detect_convergence")),
            Arrow(12, "bucket", "worker 0", "validation set", "validation set", "detect_convergence"),
            Arrow(14, "worker 0", "bucket", "decision; first counts", "message", "detect_convergence"),
        ),
        (
            *_for_both(Bar(2, "worker 0", "compute_gradients", "compute_gradients", ("compute",))),
            *_for_both(Bar(4, "database 0", "average_in_database", "average_in_database")),
            Bar(6, "worker 0", "check_peers polls", "check_peers", wait=True),
            *_for_both(Bar(10, "database 0", "aggregate_peers", "aggregate_peers")),
            *_for_both(Bar(11, "database 0", "update_model", "update_model")),
            *_for_both(Bar(13, "worker 0", "detect_convergence", "detect_convergence", ("evaluate",))),
        ),
    ),
    Card(
        (
            *_place_workers("function"),
            ("database", 20, 60),
            ("database", 76, 60),
            ("database", 132, 60),
            ("database", 188, 60),
        ),
        ((0, 4), (1, 5), (2, 6), (3, 7), (4, 5), (5, 6), (6, 7)),
        (),
        "every worker's own database averages",
        (4, 5, 6, 7),
    ),
)

_LONG = ("initialise", "train", "collect")


def _lay_out_lambdaml(note: str) -> Structure:
    """Return the layout of the structure picture that AllReduce and ScatterReduce share. `note`: text under the worker's function."""
    return Structure(
        352,
        (
            Box("initialise", 112, "first checkpoints: the same model"),
            Box("train", 184, note),
            Box("collect", 244, "trained model into the bucket"),
        ),
        (
            Frame("state machine of the run", 0, 62, 296, _LONG),
            Frame("{workers} long workers side by side, until finished", 1, 161, 232, ("train",)),
        ),
        _place_stores("one host for all"),
    )


MLLESS = Layout(
    "mlless",
    "MLLess",
    "MLLess: only significant updates travel; a supervisor sets the pace",
    "MLLess: a small update, then a wait for the supervisor's decision",
    Structure(
        424,
        (
            Box("initialise", 112, "first checkpoints, message exchange"),
            Box("supervise", 206, "which updates apply, who may leave"),
            Box("train", 272, "gradient, filter, updates of the others"),
            Box("collect", 324, "trained model into the bucket"),
        ),
        (
            Frame("state machine of the run", 0, 62, 372, ("initialise", "supervise", "train", "collect")),
            Frame("side by side", 1, 160, 318, ("supervise", "train")),
            Frame("one supervisor, until finished", 2, 183, 248, ("supervise",)),
            Frame("{workers} long workers, until finished", 2, 251, 314, ("train",)),
        ),
        _place_stores("one host for all", broker=True),
    ),
    Round(
        13,
        (
            Lane("bucket", 60, "bucket", "bucket"),
            Lane("worker 0", 190, "function", "worker 0", 0),
            Lane("database", 330, "database", "tensor database"),
            Lane("broker", 460, "broker", "broker"),
            Lane("supervisor", 590, "function", "supervisor", 0),
            Lane("worker 1", 715, "function", "worker 1 (2, 3 alike)", 1, True),
        ),
        (
            Arrow(0, "bucket", "worker 0", "minibatch", "minibatch", "train"),
            Arrow(3, "worker 0", "database", "update", "update", "train"),
            Arrow(4, "worker 0", "database", "report", "message", "train"),
            Arrow(4, "worker 1", "database", "update", "update", "train"),
            Arrow(5, "worker 1", "database", "report", "message", "train"),
            Arrow(6, "database", "supervisor", "report of each worker", "message", "supervise", "workers"),
            Arrow(8, "supervisor", "database", "decision: whose updates apply", "message", "supervise"),
            Arrow(9, "supervisor", "broker", "has decided", "message", "supervise"),
            *_for_both(Arrow(10, "broker", "worker 0", "has decided", "message", "train")),
            *_for_both(Arrow(11, "database", "worker 0", "decision", "message", "train")),
            *_for_both(Arrow(12, "database", "worker 0", "update", "update", "train", "others")),
        ),
        (
            *_for_both(Bar(1, "worker 0", "computes gradient", "train", ("compute",))),
            *_for_both(Bar(2, "worker 0", "keeps small parts back", "train", ("filter",), width=144)),
            Bar(0, "supervisor", "waits for all", "supervise", wait=True, rows=6.6, width=84),
            Bar(5, "worker 0", "waits for decision", "train", wait=True, rows=5.6),
            Bar(6, "worker 1", "waits for decision", "train", wait=True, rows=4.6),
            Bar(7, "supervisor", "decides", "supervise", width=84),
            *_for_both(Bar(13, "worker 0", "applies updates", "train", ("update",))),
        ),
    ),
    Card(
        (
            *_place_workers("function"),
            ("database", 62, 60),
            ("function", 132, 60),
            ("broker", 188, 60),
        ),
        ((0, 4), (1, 4), (2, 4), (3, 4)),
        ((4, 5), (5, 6), (0, 6), (1, 6), (2, 6), (3, 6)),
        "each worker adds what passed a filter",
        (0, 1, 2, 3),
    ),
)

ALL_REDUCE = Layout(
    "all-reduce",
    "LambdaML AllReduce",
    "AllReduce: one worker, the master, averages for all",
    "AllReduce: all wait while the master reads every gradient",
    _lay_out_lambdaml("gradient; the master (worker 0) averages"),
    Round(
        10,
        (
            Lane("bucket", 60, "bucket", "bucket"),
            Lane("worker 0", 200, "function", "worker 0, master", 0),
            Lane("database", 370, "database", "tensor database"),
            Lane("worker 1", 540, "function", "worker 1", 1, True),
            Lane("worker 2", 715, "function", "workers 2 and 3", 2, True),
        ),
        (
            Arrow(0, "bucket", "worker 0", "minibatch", "minibatch", "train"),
            *_for_both(Arrow(2, "worker 0", "database", "gradient", "gradient", "train")),
            Arrow(3, "worker 2", "database", "gradient each, last", "gradient", "train"),
            Arrow(5, "database", "worker 0", "gradient", "gradient", "train", "others"),
            Arrow(7, "worker 0", "database", "average", "average", "train"),
            Arrow(8, "database", "worker 1", "average", "average", "train"),
            Arrow(9, "database", "worker 2", "average each", "average", "train"),
        ),
        (
            *_for_both(Bar(1, "worker 0", "computes gradient", "train", ("compute",))),
            Bar(1, "worker 2", "compute gradients", "train", ("compute",)),
            Bar(4, "worker 0", "waits for the last", "train", wait=True),
            Bar(4, "worker 1", "waits for the master", "train", wait=True, rows=4),
            Bar(4, "worker 2", "wait for the master", "train", wait=True, rows=4),
            Bar(6, "worker 0", "reads and averages", "train", ("aggregate",)),
            *_for_both(Bar(10, "worker 0", "updates its model", "train", ("update",))),
            Bar(10, "worker 2", "update their models", "train", ("update",)),
        ),
    ),
    Card(
        (
            *_place_workers("function"),
            ("database", 104, 60),
        ),
        ((0, 4), (0, 4), (1, 4), (2, 4), (3, 4)),
        (),
        "one worker averages, the others wait",
        (0,),
    ),
)


def _lay_out_chunks() -> Round:
    """Return the layout of ScatterReduce's round: four workers around the database, each of which averages one chunk."""
    ranks, near, far = range(4), (1, 2), (0, 3)
    names = [f"worker {rank}" for rank in ranks]
    arrows = [Arrow(0, "bucket", "worker 0", "minibatch", "minibatch", "train")]
    for row, some in ((2, near), (3, far)):
        arrows += [
            Arrow(row, names[rank], "database", "chunks for the others", "chunk", "train", "others") for rank in some
        ]
    for row, some in ((5, near), (6, far)):
        arrows += [Arrow(row, "database", names[rank], f"chunk {rank}", "chunk", "train", "others") for rank in some]
    for row, some in ((8, near), (9, far)):
        arrows += [Arrow(row, names[rank], "database", f"mean of chunk {rank}", "chunk", "train") for rank in some]
    for row, some in ((11, near), (12, far)):
        arrows += [Arrow(row, "database", names[rank], "means of others", "chunk", "train", "others") for rank in some]
    bars = []
    for name in names:
        bars += [
            Bar(1, name, "computes gradient", "train", ("compute",)),
            Bar(4, name, "waits for its {others} parts", "train", wait=True),
            Bar(7, name, "reads and averages", "train", ("aggregate",)),
            Bar(10, name, "waits for means", "train", wait=True),
            Bar(13, name, "updates its model", "train", ("update",)),
        ]
    lanes = (
        Lane("bucket", 40, "bucket", "bucket"),
        Lane("worker 0", 145, "function", "worker 0", 0),
        Lane("worker 1", 278, "function", "worker 1", 1, True),
        Lane("database", 415, "database", "tensor database"),
        Lane("worker 2", 552, "function", "worker 2", 2, True),
        Lane("worker 3", 690, "function", "worker 3", 3, True),
    )
    return Round(13, lanes, tuple(arrows), tuple(bars))


SCATTER_REDUCE = Layout(
    "scatter-reduce",
    "LambdaML ScatterReduce",
    "ScatterReduce: every worker averages one chunk for all",
    "ScatterReduce: all average at the same time, each its chunk",
    _lay_out_lambdaml("gradient in chunks; averages its own chunk"),
    _lay_out_chunks(),
    Card(
        (
            *_place_workers("function"),
            ("database", 104, 60),
        ),
        ((0, 4), (1, 4), (2, 4), (3, 4)),
        (),
        "every worker averages one chunk",
        (0, 1, 2, 3),
        "\u03a3/4",
    ),
)

P2P_INSTANCE = Layout(
    "p2p-instance",
    "P2P on instances",
    "P2P on instances: peers on EC2 exchange gradients by a broker",
    "P2P on instances: minibatches in turn, then all meet at the broker",
    Structure(
        240,
        (Box("train_peer", 136, "{workers} instances: gradients, average, update", "instance"),),
        (),
        _place_stores(broker=True),
    ),
    Round(
        9,
        (
            Lane("bucket", 70, "bucket", "bucket"),
            Lane("peer 0", 220, "instance", "peer 0", 0),
            Lane("broker", 390, "broker", "broker"),
            Lane("peer 1", 560, "instance", "peer 1", 1, True),
            Lane("peer 2", 720, "instance", "peers 2 and 3", 2, True),
        ),
        (
            Arrow(0, "bucket", "peer 0", "minibatch", "minibatch", "train_peer", "minibatches"),
            *_for_both(Arrow(2, "peer 0", "broker", "gradient, mailbox 0", "stored gradient", "train_peer")),
            Arrow(3, "peer 0", "broker", "arrived at the barrier", "message", "train_peer"),
            Arrow(5, "peer 2", "broker", "gradient each, last", "stored gradient", "train_peer"),
            *_for_both(Arrow(6, "broker", "peer 0", "gradient", "stored gradient", "train_peer", "others")),
            Arrow(7, "broker", "peer 2", "gradient each", "stored gradient", "train_peer", "others"),
            Arrow(9, "peer 0", "bucket", "checkpoint", "checkpoint", "train_peer"),
        ),
        (
            *_for_both(Bar(1, "peer 0", "computes all in turn", "train_peer", ("compute gradients",))),
            Bar(1, "peer 2", "compute all in turn", "train_peer", ("compute gradients",)),
            Bar(4, "peer 0", "waits at the barrier", "train_peer", wait=True, rows=2),
            Bar(4, "peer 1", "waits at the barrier", "train_peer", wait=True),
            *_for_both(Bar(8, "peer 0", "averages, updates", "train_peer", ("receive", "model update"))),
            Bar(8, "peer 2", "average, update", "train_peer", ("receive", "model update")),
        ),
    ),
    Card(
        (
            *_place_workers("instance"),
            ("broker", 104, 60),
        ),
        ((0, 4), (1, 4), (2, 4), (3, 4)),
        (),
        "every peer averages all gradients",
        (0, 1, 2, 3),
    ),
)

P2P_SERVERLESS = Layout(
    "p2p-serverless",
    "P2P with Lambda",
    "P2P with Lambda: peers on EC2, one function per minibatch",
    "P2P with Lambda: minibatches at once, each fetches the model",
    Structure(
        384,
        (
            Box(
                "train_peer",
                112,
                "{workers} instances: average, exchange, update",
                "instance",
                ("gradients", "averages"),
            ),
            Box("compute_gradient", 200, "one minibatch's gradient"),
            Box("average_part", 280, "one part; p2p.average_in: lambda"),
        ),
        (
            Frame("gradients: {minibatches} minibatches side by side", 1, 177, 248, ("compute_gradient",), "gradients"),
            Frame("averages: parts side by side", 1, 257, 328, ("average_part",), "averages"),
        ),
        _place_stores(broker=True),
    ),
    Round(
        12,
        (
            Lane("functions", 90, "function", "functions", 0),
            Lane("bucket", 240, "bucket", "bucket"),
            Lane("peer 0", 400, "instance", "peer 0", 0),
            Lane("broker", 555, "broker", "broker"),
            Lane("peer 1", 710, "instance", "peer 1 (2, 3 alike)", 1, True),
        ),
        (
            Arrow(0, "peer 0", "bucket", "model", "stored model", "train_peer"),
            Arrow(1, "peer 0", "functions", "starts the state machine gradients", "message", "train_peer"),
            Arrow(2, "bucket", "functions", "model", "stored model", "compute_gradient", "minibatches"),
            Arrow(3, "bucket", "functions", "minibatch", "minibatch", "compute_gradient", "minibatches"),
            Arrow(5, "functions", "bucket", "gradient", "stored gradient", "compute_gradient", "minibatches"),
            Arrow(6, "bucket", "peer 0", "gradient", "stored gradient", "train_peer", "minibatches"),
            *_for_both(Arrow(8, "peer 0", "broker", "average, mailbox 0", "stored gradient", "train_peer")),
            *_for_both(Arrow(10, "broker", "peer 0", "average", "stored gradient", "train_peer", "others")),
            Arrow(12, "peer 0", "bucket", "checkpoint", "checkpoint", "train_peer"),
        ),
        (
            Bar(4, "functions", "compute_gradient", "compute_gradient", ("compute",)),
            Bar(2, "peer 0", "waits for functions", "train_peer", wait=True, rows=4),
            Bar(7, "peer 0", "averages its own", "train_peer"),
            *_for_both(Bar(9, "peer 0", "waits at the barrier", "train_peer", wait=True)),
            *_for_both(Bar(11, "peer 0", "averages, updates", "train_peer", ("receive", "model update"))),
        ),
    ),
    Card(
        (
            *_place_workers("instance"),
            ("broker", 152, 60),
            ("function", 20, 60),
            ("function", 50, 60),
            ("function", 80, 60),
        ),
        ((0, 4), (1, 4), (2, 4), (3, 4), (0, 5), (0, 6), (0, 7)),
        (),
        "every peer averages all gradients",
        (0, 1, 2, 3),
    ),
)

GPU = Layout(
    "gpu",
    "Distributed GPU baseline",
    "GPU baseline: one program per GPU, gradients by the bucket",
    "GPU baseline: every GPU reads all gradients and averages them",
    Structure(
        240,
        (Box("train_gpu", 136, "{workers} instances: gradients, average, update", "gpu"),),
        (),
        _place_stores(),
    ),
    Round(
        7,
        (
            Lane("worker 0", 120, "gpu", "worker 0", 0),
            Lane("worker 1", 260, "gpu", "worker 1", 1, True),
            Lane("bucket", 400, "bucket", "bucket"),
            Lane("worker 2", 540, "gpu", "worker 2", 2, True),
            Lane("worker 3", 680, "gpu", "worker 3", 3, True),
        ),
        (
            Arrow(0, "bucket", "worker 0", "minibatch, while the one before is computed", "minibatch", "train_gpu"),
            Arrow(2, "worker 1", "bucket", "gradient", "stored gradient", "train_gpu"),
            Arrow(2, "worker 2", "bucket", "gradient", "stored gradient", "train_gpu"),
            Arrow(3, "worker 0", "bucket", "gradient", "stored gradient", "train_gpu"),
            Arrow(3, "worker 3", "bucket", "gradient", "stored gradient", "train_gpu"),
            Arrow(5, "bucket", "worker 1", "gradient", "stored gradient", "train_gpu", "others"),
            Arrow(5, "bucket", "worker 2", "gradient", "stored gradient", "train_gpu", "others"),
            Arrow(6, "bucket", "worker 0", "gradient", "stored gradient", "train_gpu", "others"),
            Arrow(6, "bucket", "worker 3", "gradient", "stored gradient", "train_gpu", "others"),
        ),
        tuple(
            bar
            for rank in range(4)
            for bar in (
                Bar(1, f"worker {rank}", "computes on its GPU", "train_gpu", ("compute gradients",), width=128),
                Bar(4, f"worker {rank}", "waits for the last", "train_gpu", wait=True),
                Bar(7, f"worker {rank}", "averages, updates", "train_gpu", ("receive", "model update"), width=128),
            )
        ),
    ),
    Card(
        (
            *_place_workers("gpu"),
            ("bucket", 104, 60),
        ),
        ((0, 4), (1, 4), (2, 4), (3, 4)),
        (),
        "every GPU averages all gradients",
        (0, 1, 2, 3),
    ),
)

LAYOUTS = (SPIRT, MLLESS, ALL_REDUCE, SCATTER_REDUCE, P2P_INSTANCE, P2P_SERVERLESS, GPU)
