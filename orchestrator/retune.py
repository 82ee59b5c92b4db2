"""Retune: which launch tells most about where the peak went, planned from the records of both stacks alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from search_spaces.configuration import Configuration
from search_spaces.space import SearchSpace
from trackers.records import Role, TrialRecord

from .candidates import Candidate, Target, candidates, noise_of
from .joint_model import Forecast, JointModel, Rates, Reading, fit_scales
from .launch_noise import LaunchNoise, finalist_launches
from .peak import beats
from .refusal import known_failure, shortfall
from .shift import PeakShift, judge_shift
from .stability import StabilityRule
