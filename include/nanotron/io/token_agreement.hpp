#pragma once

// Whether all ranks see the same token file under one path: on hosts with disks of their own they may not.

#include <mpi.h>

#include <cstdint>
#include <string>

#include "nanotron/base/log.hpp"
#include "nanotron/data/token_file.hpp"
#include "nanotron/deck/config.hpp"

namespace nanotron::io {

/// Blocks of this many tokens are hashed on their own, and in a sample so many of them.
inline constexpr index_t token_block = index_t{1} << 20, sampled_blocks = 64;

/// Error(data_error) on all ranks unless they see the same file, with the hosts of each content and its hash. Ranks of a
/// host that see one file (device and inode) hash it together, each a part of the blocks, so that every host reads its
/// file at most once. `key` names the file in the deck; with `documents` /documents are compared too. Takes
/// 4 MiB a rank. Collective; where all ranks see one file on one host nothing is read.
///
/// The hash, mod 2^64: the sum over blocks b of XXH3-64(ids of tokens [bB, (b+1)B) as int32, seed b), and of
/// XXH3-64(head, seed 2^64 - 1), the head being a line of the sizes, ids and hashes beside the tokens. A sample takes the
/// blocks floor(i (blocks - 1) / 63), i = 0, ..., 63.
void require_same_tokens(MPI_Comm world, const data::TokenFile& file, const std::string& key, deck::Verify verify,
                         bool documents, Log& log);

/// This rank's part of that sum: of `parts` ranks that share the file the one of number `part`; the first takes the head.
std::uint64_t hash_part(const data::TokenFile& file, bool sample, bool documents, int part, int parts);

}  // namespace nanotron::io
