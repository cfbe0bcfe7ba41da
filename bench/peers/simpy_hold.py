"""The hold model in SimPy: N entities, each with one pending timer, exponential delays of one second on average."""

import random
import sys
import time

import simpy

entities, events = int(sys.argv[1]), int(sys.argv[2])
rng = random.Random(1)
delays = [rng.expovariate(1.0) for _ in range(4096)]
state = [0] * entities
left = events


def entity(env, index):
    global left
    step = index
    while True:
        yield env.timeout(delays[step & 4095])
        step += 7
        state[index] += 1
        left -= 1


env = simpy.Environment()
for index in range(entities):
    env.process(entity(env, index))
for _ in range(entities):
    env.step()  # every entity starts and registers its first timer
before = time.thread_time()
while left > 0:
    env.step()
print("ns/event", (time.thread_time() - before) / events * 1e9)
