"""Policies of layer skipping: the model drafts for itself with some of its layers left out.

=====================  =================================================================================
:mod:`.early_exit`     always the first ``k`` layers (LayerSkip)
:mod:`.swift`          a set of sublayers, searched on the text that the model has said (SWIFT)
:mod:`.clasp`          a set of layers per step, by dynamic programming over hidden states (CLaSp)
:mod:`.conflayers`     layers of little confidence, with an adaptive threshold (ConfLayers)
:mod:`.stopping`       when to stop drafting, and when not to start
=====================  =================================================================================

What they share is in :mod:`specplug.layers.policy`. They need an executor that can run parts of the model:
``specplug.adapters.transformers_hf`` so far.
"""
