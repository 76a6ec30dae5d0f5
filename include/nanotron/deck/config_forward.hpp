#pragma once
// For headers that hand the configuration on: which groups it has, and what is in them, does not concern them.

namespace nanotron::deck {

struct Config;

}  // namespace nanotron::deck
