// Linked into every program of a sanitizer build. An MPI library that unloads its plugins leaves
// the leak checker with addresses it cannot name, so that no suppression matches.
extern "C" int dlclose(void* /*handle*/) { return 0; }
