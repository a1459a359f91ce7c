from dataclasses import dataclass

from fedrepro.errors import bad
from fedrepro.methods.base import FedAvg, Local, Round, State
from fedrepro.methods.fd import initial
from fedrepro.simulation.tree import Tree


@dataclass(frozen=True)
class LocalTraining(FedAvg):
    """Local training: every client goes on with its own model on its own data; nothing is sent.

    Clients start from one model that the seed gives to all and keep weights and BatchNorm statistics. Without a
    global model the run's accuracy is the mean over the round's participants of their own models'; the weights of
    its result stay the initial ones.
    """

    def check(self, run) -> None:
        super().check(run)
        if "+" in run.method:
            raise bad("method", run.method, f"{self.title()} alone: its clients do not share one model")

    def broadcast(self, server, cid, r):
        return {}

    def receive(self, k: Local, message) -> None:
        k.load(*((k.client["own/w"], k.client["own/b"]) if k.client else initial(k)))

    def finish(self, k: Local):
        own, kept = super().finish(k)
        return {}, {**kept, "own/w": own["w"], "own/b": own["b"]}

    def aggregate(self, server, uploads, r: Round) -> State:
        return server

    def tested(self, server, client, r: Round):
        return [] if r.run.personal else [self.personal(server, client(cid), cid) for cid in r.participants]

    def personal(self, server, client, cid):
        return self.trained_model({}, client) if client else super().personal(server, client, cid)

    def trained_model(self, sent, kept) -> tuple[Tree, Tree]:
        return kept["own/w"], kept["own/b"]
