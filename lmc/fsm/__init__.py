"""Constraints as automata: regex ─► byte DFA ─► compressed ─► token automaton ─► forced tokens. No torch, and no numpy up to the byte DFA.

regex.parse ─► dfa.build (minimise) ─► compress ─► draw                  for display
                        └─► tokens.TokenAutomaton(dfa, vocabulary) ─► forced.ForcedTokens(automaton, encode)
"""
