"""Layer skipping, as far as it knows no engine: what a draft pass runs, what decides it, and fitted exit heads.

:mod:`specplug.layers.plan` says which sublayers run, :mod:`specplug.layers.policy` what an executor and a policy owe
each other, :mod:`specplug.layers.exit_head` what makes a shallow hidden state look like a final one. Policies are in
:mod:`specplug.proposers.layerskip`.
"""
