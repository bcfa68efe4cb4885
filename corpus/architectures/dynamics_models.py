"""Models of dynamics: neural differential equations, liquid and spiking networks, and policies of stable_baselines3."""

import functools

import torch
from _libraries import import_after_torchvision

import onnx_ci

SEEN = "torch 2.13.0"
wrong = functools.partial(onnx_ci.known_failure, seen=SEEN)
TIMES = {"expect": {"dynamo": wrong("export-error", "the solver checks the values of its times")}}
VALID = {"expect": {"dynamo": wrong("export-error", "torch.distributions checks the values of its arguments")}}
KNOWN = {
    "actor_critic": VALID,
    "actor_critic_cnn": VALID,
    "euler": TIMES,
    "explicit_adams": TIMES,
    "heun3": TIMES,
    "rk4": TIMES,
    "sac": VALID,
}
"""What is known to fail, by case."""


class NeuralODE(torch.nn.Module):
    """The state of a learned differential equation at three times."""

    def __init__(self, **options):
        super().__init__()
        self.change = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
        self.solve = import_after_torchvision("torchdiffeq").odeint
        self.options = options

    def forward(self, state):
        times = torch.tensor([0.0, 0.5, 1.0], dtype=state.dtype)
        return self.solve(lambda time, value: self.change(value), state, times, **self.options)


@onnx_ci.recipe(
    each={case: KNOWN.get(case, {}) for case in ("euler", "rk4", "explicit_adams", "heun3")},
    input_names=["state"],
    output_names=["states"],
    dynamic_axes={"state": {0: "batch"}, "states": {1: "batch"}},
    tags=["torchdiffeq", "dynamics"],
)
def neural_ode(case):
    return NeuralODE(method=case, options={"step_size": 0.25}), (torch.randn(3, 4),)


@onnx_ci.recipe(
    each={case: KNOWN.get(case, {}) for case in ("cfc", "cfc_wired", "ltc")},
    input_names=["series"],
    output_names=["outputs", "state"],
    dynamic_axes={"series": {0: "batch"}, "outputs": {0: "batch"}, "state": {0: "batch"}},
    tags=["ncps", "dynamics"],
)
def liquid(case):
    networks, wirings = import_after_torchvision("ncps.torch"), import_after_torchvision("ncps.wirings")
    wiring = wirings.AutoNCP(10, 3, seed=1)
    model = {
        "cfc": lambda: networks.CfC(4, 8, proj_size=3),
        "cfc_wired": lambda: networks.CfC(4, wiring),
        "ltc": lambda: networks.LTC(4, wiring, ode_unfolds=3),
    }[case]()
    return model, (torch.randn(2, 5, 4),)


class Spiking(torch.nn.Module):
    """Two layers of spiking neurons, for four steps of the same input."""

    def __init__(self, neuron):
        super().__init__()
        library = import_after_torchvision("snntorch")
        options = {"beta": 0.9, "threshold": 0.5, "spike_grad": library.surrogate.fast_sigmoid()}
        if neuron == "Synaptic":
            options["alpha"] = 0.8
        if neuron == "Alpha":
            options["alpha"], options["beta"] = 0.9, 0.8
        self.first, self.second = torch.nn.Linear(6, 12), torch.nn.Linear(12, 3)
        self.hidden = getattr(library, neuron)(**options, init_hidden=True)
        self.last = getattr(library, neuron)(**options, init_hidden=True, output=True)

    def forward(self, image):
        self.hidden.reset_mem()
        self.last.reset_mem()
        spikes = [self.last(self.second(self.hidden(self.first(image))))[0] for _ in range(4)]
        return torch.stack(spikes).sum(dim=0)


@onnx_ci.recipe(
    each={case: KNOWN.get(case, {}) for case in ("leaky", "synaptic")},
    input_names=["image"],
    output_names=["spikes"],
    dynamic_axes={"image": {0: "batch"}, "spikes": {0: "batch"}},
    tags=["snntorch", "dynamics"],
)
def spiking(case):
    return Spiking(case.capitalize()), (torch.rand(3, 6),)


@onnx_ci.recipe(
    each={case: KNOWN.get(case, {}) for case in ("actor_critic", "actor_critic_cnn", "dqn", "sac")},
    input_names=["observation"],
    dynamic_axes={"observation": {0: "batch"}},
    tags=["stable_baselines3", "policy"],
)
def policy(case):
    spaces = import_after_torchvision("gymnasium.spaces")
    policies = import_after_torchvision("stable_baselines3.common.policies")
    vector, image = spaces.Box(-1, 1, (6,)), spaces.Box(0, 255, (3, 36, 36), dtype="uint8")
    small = {"net_arch": [16]}

    def rate(_):
        return 1e-3

    if case == "actor_critic_cnn":
        features = import_after_torchvision("stable_baselines3.common.torch_layers").NatureCNN
        options = {"features_extractor_class": features, "features_extractor_kwargs": {"features_dim": 16}}
        model = policies.ActorCriticPolicy(image, spaces.Discrete(3), rate, **small, **options)
        return onnx_ci.adapt(model, fixed={"deterministic": True}), (torch.randint(0, 256, (2, 3, 36, 36), dtype=torch.uint8),)
    if case == "actor_critic":
        model = policies.ActorCriticPolicy(vector, spaces.Box(-2, 2, (2,)), rate, **small)
        return onnx_ci.adapt(model, fixed={"deterministic": True}), (torch.randn(2, 6),)
    if case == "dqn":
        dqn = import_after_torchvision("stable_baselines3.dqn.policies")
        return dqn.DQNPolicy(vector, spaces.Discrete(4), rate, **small).q_net, (torch.randn(2, 6),)
    sac = import_after_torchvision("stable_baselines3.sac.policies")
    model = sac.SACPolicy(vector, spaces.Box(-2, 2, (2,)), rate, **small)
    return onnx_ci.adapt(model.actor, fixed={"deterministic": True}), (torch.randn(2, 6),)
