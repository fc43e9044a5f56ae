"""Hypothesis profiles, chosen by HYPOTHESIS_PROFILE, one thread for torch, and gRPC held to TLS 1.3."""

import os

import torch
from hypothesis import HealthCheck, settings

from commands import dresfl as dresfl

settings.register_profile("default", max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("slow", max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

torch.set_num_threads(1)

# Some test modules import grpc before dresfl.runtimes.grpc_runtime, which must have this in its environment by then.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-PSK-AES128-CBC-SHA"
os.environ["GRPC_VERBOSITY"] = "INFO"
