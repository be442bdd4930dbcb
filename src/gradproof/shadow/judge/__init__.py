"""The judge: what a window is compared with, and what that shows. The page is docs/rule.md.

A window is right where its step is that of the full batch: the same program with one micro-batch of N * r rows. Let
w(N, r) be the weight of a sample, as a function of N micro-batches and of r rows; it has to be w(1, N * r).

`check` runs the function a second time for that (two_runs, by_terms, by_numbers, reported). `watch` has one run: it
puts N -> 1 and r -> N * r into the weights (scale), and asks whether every sample of a window has one (weights,
one_run, losses). The steps of a window are judged by its events (steps).
Equal combinations prove. REFUTED needs numbers of known origin that differ; whatever is not shown is undecided.
What a diagnosis names decides nothing.
"""
