// The one source of the target that owns the precompiled header (see NanotronOptions.cmake).
namespace nanotron {
int precompiled_header_owner();
int precompiled_header_owner() { return 0; }
}  // namespace nanotron
