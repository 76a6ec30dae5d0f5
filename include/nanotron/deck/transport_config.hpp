#pragma once
// What &parallel says of collectives and messages.

namespace nanotron::deck {

enum class Backend { automatic, mpi, nccl };
enum class MemoryRegistration { none, local, symmetric };
enum class CollectiveEngine { blocks, copies };

}  // namespace nanotron::deck
