"""The partition of a graph of operators over devices: plan.plan_graph()."""
