"""Budgets of exits: what a guest program's world switches are on any machine, held against what they may be."""
