enum Law { EXACT = 0, TYPICAL = 1, TYPICAL_PI = 2, OPT = 3, TOKEN_V1 = 4, TOKEN_V2 = 5, TOKEN_V3 = 6 };

// Whether a token is kept without a coin under the laws that look at single tokens; level is the row's own cut.
inline bool in_keep_set(int law, float p, float q, float level) {
  if (law == TOKEN_V1) return q >= level;
  if (law == TOKEN_V2) return p >= level && p > 0;
  if (law == TOKEN_V3) return p >= level;
  return p > level;
}

// Weight of a token as the replacement of a rejected draft: max(0, pi - q), or p itself under typical.
inline float replacement_weight(int law, float p, float q, float level, float eta) {
  if (law == TYPICAL) return p;
  if (law == EXACT || law == OPT) return max(p - q, 0.0f);
  float deferred_part = eta * p;
  return in_keep_set(law, p, q, level) ? deferred_part : max(deferred_part - q, 0.0f);
}
