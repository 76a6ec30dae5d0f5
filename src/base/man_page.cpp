#include "nanotron/base/man_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "nanotron/base/provenance.hpp"

namespace nanotron::man {

std::string text(const std::string& words) {
  std::string out;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const bool first = i == 0 || words[i - 1] == '\n';
    switch (words[i]) {
      case '\\':
        out += "\\e";
        break;
      case '-':
        out += "\\-";
        break;
      case '\'':
        out += "\\(aq";
        break;
      case '`':
        out += "\\(ga";
        break;
      case '^':
        out += "\\(ha";
        break;
      case '~':
        out += "\\(ti";
        break;
      case '"':
        out += "\\(dq";
        break;
      case '.':
        out += first ? "\\&." : ".";
        break;
      default:
        out += words[i];
    }
  }
  return out;
}

std::string bold(const std::string& words) { return "\\fB" + text(words) + "\\fR"; }

std::string italic(const std::string& words) { return "\\fI" + text(words) + "\\fR"; }

std::string head(const std::string& name, int section, const std::string& summary) {
  std::string upper = name;
  std::transform(upper.begin(), upper.end(), upper.begin(), [](unsigned char c) { return std::toupper(c); });
  std::string version;
  for (const auto& [key, value] : build_provenance()) {
    if (key == "version") version = value;
  }
  return fmt::format(".TH {} {} {} \"nanotron_hpc {}\"\n.SH NAME\n{} \\- {}\n", upper, section, source_date(),
                     text(version), name, text(summary));
}

std::string item(const std::string& tag, const std::string& meaning) {
  return fmt::format(".TP\n{}\n{}\n", tag, text(meaning));
}

}  // namespace nanotron::man
