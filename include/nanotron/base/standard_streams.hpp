#pragma once

namespace nanotron {

/// Opens /dev/null for those of the descriptors 0, 1 and 2 that are closed (`>&-`): else a file of the run gets the
/// number, and what is printed is written into it. Call it before anything opens a file.
void open_standard_streams();

}  // namespace nanotron
