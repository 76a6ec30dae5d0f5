// Compiled with the -march of all else, and without code: a processor that lacks it can read the table.
#include "features.hpp"

// Of a macro that is defined the text is "1", of others their name.
#define NANOTRON_TEXT(word) #word
#define NANOTRON_IS_DEFINED(name, macro) NANOTRON_TEXT(macro)[0] == '1',

namespace nanotron::apps {

constinit const bool built_for_feature[] = {NANOTRON_PROCESSOR_FEATURES(NANOTRON_IS_DEFINED)};

}  // namespace nanotron::apps
