// A float as an unsigned key of the same order; -0 and 0 are one key, so that they tie. No key of a number is 0.
inline uint order_key(float value) {
  uint bits = value == 0.0f ? 0u : as_type<uint>(value);
  return (bits & 0x80000000u) ? ~bits : (bits | 0x80000000u);
}
