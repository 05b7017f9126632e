"""The commented example that `drimed trial template` writes."""

TEMPLATE = """\
# A trial of drimed. Everything after a # is a comment. Check it with: drimed trial init FILE --dry-run

name = "maize-nitrogen"            # letters, digits, dots, dashes
about = "Which nitrogen plan for which farm, compared with common practice"
# seed = 7                         # of the random draws; left out, one is drawn and kept in the log
feedback = "absolute"              # or "difference": each site also has a control plot and reports both
decisions = "one per episode"      # or "any number": a user may come many times in an episode

# What would be done without the trial: an arm, or shares of arms such as { practice = 0.7, split = 0.3 }.
control = "practice"
# How sure a decision must be of keeping its promise: a level, or "anytime" for all decisions at once.
confidence = 0.99

# What is measured of every decision. `range` holds plausible values; it tells the learner what is large.
[metrics.yield]
unit = "t/ha"
range = [0, 15]
[metrics.leaching]
unit = "kg N/ha"
range = [0, 80]
better = "lower"                   # the direction that a guardrail protects

# What can be done. Every arm has its own effects, unless all are described by attributes:
#   [arms.low]
#   attributes = { nitrogen = 60, irrigation = 0 }
# or by explicit matrices Phi(a), one row for each metric: map = [[1, 0, 0.5], [0, 1, 0.2]]
[arms.practice]
about = "120 kg N at sowing"
[arms.split]
about = "60 kg at sowing, 60 kg at stem elongation"
[arms.reduced]
about = "80 kg at sowing"

# For whom. Weights of the metrics make the reward: here one tonne is worth 200 and one kg of nitrate costs 3.
[users.north]
preference = { yield = 200, leaching = -3 }
group = "sand"
[users.hill]
preference = { yield = 200, leaching = -1 }
group = "loam"
[users.river]
preference = { yield = 150, leaching = -6 }
group = "sand"
# arms = ["practice", "split"]     # where not all arms are possible
# control = "split"                # a control of its own

# No decision may be expected to earn less than the control by more than this, in the unit of the reward.
[tolerance]
relative = 0.1
absolute = 60

# Besides the reward, single metrics can be protected whatever the preferences.
[[guardrails]]
metric = "yield"
relative = 0.1
absolute = 0.5

# What is known about a user before each decision. The policy sees (value - typical) / spread.
[context.rain]
unit = "mm"
typical = 450
spread = 120

# How outcomes scatter: learned from the data, or known, for instance
#   kind = "known"
#   sd = { yield = 0.8, leaching = 6 }
#   scale = "norm"                 # grows with 1 + |context|; or "constant", or a context field
[noise]
kind = "learned"

# The policy and its settings; `drimed policies` lists them.
[policy]
name = "dri_med"
# guard = "certain"                # every arm played is certified, instead of the expected reward only
"""
