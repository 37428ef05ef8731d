"""TorchScript for RedisAI 1.2.7 (torch 1.11): the arithmetic of crossover.algorithms, operation by operation, so that the bits agree.

Where a dtype is meant, its number stands (6: float32, 7: float64): RedisAI's compiler knows the functions of `torch`, not its constants.
Inputs share the stored tensors' memory: every function writes to copies only. `args` are decimal strings.
"""

ENTRY_POINTS = ("mean", "median", "trimmed_mean", "krum", "sgd", "adam", "facts")

SOURCE = """
def mean(tensors: List[Tensor], keys: List[str], args: List[str]):
    # args: one weight each
    total = 0.0
    equal = True
    for weight in args:
        total += float(weight)
        equal = equal and float(weight) == float(args[0])
    if len(tensors) == 1:
        return tensors[0].clone()
    if equal:
        out = torch.add(tensors[0], tensors[1])
        for i in range(2, len(tensors)):
            out.add_(tensors[i])
        return out.div_(float(len(tensors)))
    out = torch.mul(tensors[0], float(args[0]))
    for i in range(1, len(tensors)):
        out.add_(torch.mul(tensors[i], float(args[i])))
    return out.div_(total)

def ascending(tensors: List[Tensor]) -> List[Tensor]:
    # Batcher's merge exchange (Knuth, volume 3, algorithm 5.2.2M) by coordinate; equal values stay in place
    rows: List[Tensor] = []
    for t in tensors:
        rows.append(t)
    count = len(rows)
    power = 1
    while power * 2 < count:
        power = power * 2
    p = power
    if count < 2:
        p = 0
    while p > 0:
        q = power
        r = 0
        distance = p
        going = True
        while going:
            for i in range(count - distance):
                if i & p == r:
                    low = rows[i]
                    high = rows[i + distance]
                    swap = high < low
                    rows[i] = torch.where(swap, high, low)
                    rows[i + distance] = torch.where(swap, low, high)
            going = q != p
            distance = q - p
            q = q // 2
            r = p
        p = p // 2
    return rows

def median(tensors: List[Tensor], keys: List[str], args: List[str]):
    rows = ascending(tensors)
    middle = len(rows) // 2
    if len(rows) % 2 == 1:
        return rows[middle].clone()
    return torch.add(rows[middle - 1], rows[middle]).mul_(0.5)

def trimmed_mean(tensors: List[Tensor], keys: List[str], args: List[str]):
    # args: trim
    trim = int(args[0])
    rows = ascending(tensors)
    out = rows[trim].clone()
    for i in range(trim + 1, len(rows) - trim):
        out.add_(rows[i])
    return out.div_(float(len(rows) - 2 * trim))

def krum(tensors: List[Tensor], keys: List[str], args: List[str]):
    # args: faulty, select
    count = len(tensors)
    kept = count - int(args[0]) - 2
    select = int(args[1])
    scores: List[float] = []
    for i in range(count):
        distances: List[float] = []
        for j in range(count):
            if i != j:
                a = tensors[min(i, j)]
                b = tensors[max(i, j)]
                distance = float(torch.sub(a.to(7), b.to(7)).square().sum().item())
                if distance != distance:
                    distance = float('inf')
                distances.append(distance)
        distances.sort()
        score = 0.0
        for k in range(kept):
            score += distances[k]
        scores.append(score)
    chosen: List[int] = []
    for n in range(select):
        best = -1
        for i in range(count):
            if not (i in chosen) and (best < 0 or scores[i] < scores[best]):
                best = i
        chosen.append(best)
    chosen.sort()
    if select == 1:
        return tensors[chosen[0]].clone()
    out = torch.add(tensors[chosen[0]], tensors[chosen[1]])
    for k in range(2, select):
        out.add_(tensors[chosen[k]])
    return out.div_(float(select))

def blended(model: Tensor, gradient: Tensor, moved: Tensor, share: float):
    # the moved parameters and, behind them, BatchNorm's buffers
    old = model[moved.numel():]
    statistic = gradient[moved.numel():]
    if share == 1.0:
        return torch.cat([moved, statistic])
    mixed = statistic.to(7).mul_(share).add_(old.to(7).mul_(1.0 - share))  # rounded once
    return torch.cat([moved, mixed.to(6)])

def sgd(tensors: List[Tensor], keys: List[str], args: List[str]):
    # tensors: model, gradient[, velocity]; args: rate, momentum, nesterov, weight decay, buffers, statistics' share
    momentum = float(args[1])
    decay = float(args[3])
    count = tensors[0].numel() - int(args[4])
    parameters = tensors[0][:count]
    step = tensors[1][:count]
    if decay != 0.0:
        step = step.add(parameters, alpha=decay)
    out: List[Tensor] = []
    velocity = step
    if momentum != 0.0:
        if len(tensors) > 2:
            velocity = tensors[2].mul(momentum).add_(step, alpha=1.0)
        else:
            velocity = step.clone()
        if int(args[2]) == 1:
            step = step.add(velocity, alpha=momentum)
        else:
            step = velocity
    moved = torch.add(parameters, step, alpha=-float(args[0]))
    out.append(blended(tensors[0], tensors[1], moved, float(args[5])))
    if momentum != 0.0:
        out.append(velocity)
    return out

def adam(tensors: List[Tensor], keys: List[str], args: List[str]):
    # tensors: model, gradient[, two moments]; args: rate, beta1, beta2, epsilon, decay, decoupled, step, buffers, share
    rate = float(args[0])
    beta1 = float(args[1])
    beta2 = float(args[2])
    decay = float(args[4])
    t = float(args[6])
    count = tensors[0].numel() - int(args[7])
    parameters = tensors[0][:count]
    gradient = tensors[1][:count]
    moved = parameters.clone()
    if decay != 0.0:
        if int(args[5]) == 1:
            moved.mul_(1.0 - rate * decay)
        else:
            gradient = gradient.add(parameters, alpha=decay)
    if len(tensors) > 2:
        m = tensors[2].clone()
        v = tensors[3].clone()
    else:
        m = torch.zeros_like(parameters)
        v = torch.zeros_like(parameters)
    m.lerp_(gradient, 1.0 - beta1)
    v.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
    denominator = v.sqrt().div_((1.0 - beta2 ** t) ** 0.5).add_(float(args[3]))
    moved.addcdiv_(m, denominator, value=-(rate / (1.0 - beta1 ** t)))
    return [blended(tensors[0], tensors[1], moved, float(args[8])), m, v]

def facts(tensors: List[Tensor], keys: List[str], args: List[str]):
    # of each tensor: sum of squares in float64, 1 if all is finite
    found: List[Tensor] = []
    for t in tensors:
        found.append(t.to(7).square().sum())
        found.append(torch.isfinite(t).all().to(7))
    return torch.stack(found)
"""
