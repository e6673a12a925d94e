// Sizes and JSON in the form for users and scripts.
#include <gtest/gtest.h>

#include <stdexcept>

#include "base/host/json.hpp"
#include "base/host/json_value.hpp"
#include "base/host/size_text.hpp"

namespace gpu4fs::tools {
namespace {

TEST(SizeTextTest, Units) {
  EXPECT_EQ(parse_size("0"), 0u);
  EXPECT_EQ(parse_size("4096"), 4096u);
  EXPECT_EQ(parse_size("1k"), 1024u);
  EXPECT_EQ(parse_size("64M"), u64{64} << 20);
  EXPECT_EQ(parse_size("2GiB"), u64{2} << 30);
  EXPECT_EQ(parse_size("3 GB"), 3000000000u);
  EXPECT_EQ(parse_size("1T"), u64{1} << 40);
}

TEST(SizeTextTest, RefusesWhatIsNoSize) {
  for (const char* text : {"", "M", "-1", "1.5G", "10X", "10MM", "0x10", "99999999999999999999", "9999999999G"}) {
    EXPECT_THROW(parse_size(text), std::invalid_argument) << text;
  }
}

TEST(SizeTextTest, PrintsBinaryUnits) {
  EXPECT_EQ(size_text(0), "0 B");
  EXPECT_EQ(size_text(1023), "1023 B");
  EXPECT_EQ(size_text(1536), "1.5 KiB");
  EXPECT_EQ(size_text(u64{1} << 40), "1 TiB");
}

TEST(JsonTest, RoundTrip) {
  JsonWriter json;
  json.begin_object();
  json.add("text", "quote \" backslash \\ newline \n umlaut \xc3\xa4 raw \xff");
  json.add("number", u64{18446744073709551615u});
  json.add("fraction", 0.25);
  json.add("nothing", 0.0 / 0.0);
  json.add("flag", true);
  json.begin_array("list");
  json.add("", 1);
  json.begin_object();
  json.end();
  json.end();
  json.begin_array("empty");
  json.end();
  json.end();
  const JsonValue value = parse_json(json.text());
  EXPECT_EQ(value["text"].text, "quote \" backslash \\ newline \n umlaut \xc3\xa4 raw \xc3\xbf");
  EXPECT_DOUBLE_EQ(value["number"].number, 18446744073709551615.0);
  EXPECT_DOUBLE_EQ(value["fraction"].number, 0.25);
  EXPECT_EQ(value["nothing"].kind, JsonValue::Kind::null);
  EXPECT_TRUE(value["flag"].boolean);
  ASSERT_EQ(value["list"].elements.size(), 2u);
  EXPECT_EQ(value["list"].elements[1].kind, JsonValue::Kind::object);
  EXPECT_TRUE(value["empty"].elements.empty());
  EXPECT_EQ(value["absent"]["deeper"].text, "");
}

TEST(JsonTest, RefusesWhatIsNoJson) {
  const std::string deep(1000, '[');
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[1,]"), std::string("{\"a\" 1}"), std::string("\"open"),
        std::string("1 2"), std::string("nul"), std::string("\"\\u12\""), deep}) {
    EXPECT_THROW(parse_json(text), std::runtime_error) << text;
  }
}

}  // namespace
}  // namespace gpu4fs::tools
