"""JSON schemas: those that must work, and those that must be refused with the place that is at fault."""
import datetime
import enum
import uuid
from typing import Annotated, Literal, Optional, Union

from pydantic import BaseModel, ConfigDict, Field, RootModel, conlist


class Color(str, enum.Enum):
    red = "red"
    green = "green"
    deep_blue = "deep blue"


class Address(BaseModel):
    street: str
    zip_code: str = Field(min_length=3, max_length=8)
    country: Optional[str] = None


class Person(BaseModel):
    """Somebody."""
    name: str = Field(description="full name", examples=["Ada"])
    age: int = Field(ge=0, le=150)
    height_m: float = Field(gt=0, lt=3)
    address: Address
    emails: list[str] = []
    favourite: Color = Color.red
    nick: str | None = None


class Node(BaseModel):
    value: int
    children: list["Node"] = []


class LinkedList(BaseModel):
    head: str
    tail: Optional["LinkedList"] = None


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=1, le=9)


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    good: bool = True


class Owner(BaseModel):
    pet: Annotated[Union[Cat, Dog], Field(discriminator="kind")]


class Step(BaseModel):
    explanation: str
    output: str


class MathReasoning(BaseModel):
    """OpenAI's example."""
    model_config = ConfigDict(extra="forbid")
    steps: list[Step]
    final_answer: str


class CalendarEvent(BaseModel):
    name: str
    date: str
    participants: list[str]


class Scores(BaseModel):
    by_name: dict[str, float]
    pair: tuple[int, str]
    top: conlist(int, min_length=2, max_length=4)


class Extra(BaseModel):
    model_config = ConfigDict(extra="allow")
    id: int


class Tally(BaseModel):
    votes: dict[Color, int]
    seen: set[Literal["a", "b", "ab", "c"]]


class Dated(BaseModel):
    id: uuid.UUID
    day: datetime.date
    at: datetime.datetime
    code: Annotated[str, Field(pattern=r"^[A-Z]{3}-\d{4}$", max_length=8)]
    home: Optional[str] = Field(default=None, json_schema_extra={"format": "uri"})


class Words(RootModel):
    root: list[Literal["yes", "no"]]


UI = {  # OpenAI's example of a recursive schema
    "type": "object",
    "properties": {
        "type": {"type": "string", "description": "The type of the UI component",
                 "enum": ["div", "button", "header", "section", "field", "form"]},
        "label": {"type": "string"},
        "children": {"type": "array", "items": {"$ref": "#"}},
        "attributes": {"type": "array", "items": {
            "type": "object", "properties": {"name": {"type": "string"}, "value": {"type": "string"}},
            "required": ["name", "value"], "additionalProperties": False}},
    },
    "required": ["type", "label", "children", "attributes"], "additionalProperties": False,
}
WEATHER = {
    "type": "object", "properties": {
        "location": {"type": "string", "description": "City and country, e.g. Bogotá, Colombia"},
        "units": {"type": ["string", "null"], "enum": ["celsius", "fahrenheit", None]}},
    "required": ["location", "units"], "additionalProperties": False}


def obj(required=None, **properties):
    schema = {"type": "object", "properties": properties}
    return schema if required is None else {**schema, "required": required}


ACCEPTED = {
    **{model.__name__: model.model_json_schema() for model in
       [Person, Node, LinkedList, Owner, MathReasoning, CalendarEvent, Scores, Extra, Words, Address, Tally]},
    "openai ui": UI, "openai weather": WEATHER,
    "anything": {}, "true": True, "annotations only": {"title": "T", "description": "d", "default": 1, "$schema": "https://json-schema.org/draft/2020-12/schema"},
    "null": {"type": "null"}, "boolean": {"type": "boolean"}, "integer": {"type": "integer"}, "number": {"type": "number"},
    "string": {"type": "string"}, "array": {"type": "array"}, "object": {"type": "object"},
    "no properties": {"type": "object", "properties": {}}, "closed and empty": {"type": "object", "additionalProperties": False},
    "two types": {"type": ["integer", "string"]}, "nullable": {"type": ["string", "null"], "maxLength": 4},
    "all types": {"type": ["null", "boolean", "integer", "number", "string", "array", "object"]},
    "enum of all": {"enum": [1, "1", 1.5, True, False, None, [1, {"a": "b"}], {"x": []}, "", "a\"b\\c\n", "größe 🙂", 12, 123, -0.001, 1e300]},
    "const": {"const": {"a": [1, 2, None]}}, "const text": {"const": "only this"}, "const in enum": {"const": 2, "enum": [1, 2]},
    "enum and type": {"type": "string", "enum": ["a", "ab", "abc"]},
    "range 0 100": {"type": "integer", "minimum": 0, "maximum": 100}, "range -7 -3": {"type": "integer", "minimum": -7, "maximum": -3},
    "range -12 34": {"type": "integer", "exclusiveMinimum": -13, "exclusiveMaximum": 35},
    "one integer": {"type": "integer", "minimum": 4711, "maximum": 4711}, "from 10": {"type": "integer", "minimum": 10},
    "up to -10": {"type": "integer", "maximum": -10}, "large": {"type": "integer", "minimum": 9007199254740993},
    "multiples": {"type": "integer", "multipleOf": 7, "minimum": 50, "maximum": 500},
    "multiples of 1000": {"type": "integer", "multipleOf": 1000, "exclusiveMinimum": 0, "maximum": 9999},
    "real range": {"type": "number", "minimum": 0.1, "maximum": 0.3}, "open range": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "tight range": {"type": "number", "exclusiveMinimum": 1.5, "exclusiveMaximum": 1.5000001}, "negative reals": {"type": "number", "maximum": -0.5},
    "quarters": {"type": "number", "multipleOf": 0.25, "minimum": -2, "maximum": 2}, "percent": {"type": "number", "minimum": -100, "maximum": 100},
    "huge bounds": {"type": "number", "minimum": -1e300, "maximum": 1e300},
    "length": {"type": "string", "minLength": 2, "maxLength": 5}, "exact length": {"type": "string", "minLength": 3, "maxLength": 3},
    "empty string": {"type": "string", "maxLength": 0}, "at least 4": {"type": "string", "minLength": 4}, "long": {"type": "string", "maxLength": 100000},
    "format": {"type": "string", "format": "unknown-format"},
    "unique": {"type": "array", "items": {"enum": [1, 12, 1.0, "1", None, True, "x", 2]}, "uniqueItems": True, "minItems": 2}, "all of them": {"type": "array", "items": {"enum": [0, 1, 2, 3, 4]}, "uniqueItems": True, "minItems": 5},
    "names listed": {"type": "object", "propertyNames": {"enum": ["b", "a", "b", 5, "z\"z"]}, "additionalProperties": {"type": "integer"}, "required": ["a"]},
    "names listed, any value": {"type": "object", "propertyNames": {"enum": ["x", "y"]}, "minProperties": 1},
    "items": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 2, "maxItems": 3},
    "no items": {"type": "array", "maxItems": 0}, "huge maxItems": {"type": "array", "items": {"type": "boolean"}, "maxItems": 1000000000},
    "tuple": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False, "minItems": 2},
    "tuple and more": {"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "null"}, "minItems": 2},
    "tuple alone": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "boolean"}]},
    "tuple of draft 7": {"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "items": [{"type": "null"}, {"type": "integer"}], "additionalItems": {"type": "boolean"}, "minItems": 3},
    "matrix": {"type": "array", "items": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}, "minItems": 2, "maxItems": 2},
    "optional": obj(a={"type": "integer"}, b={"type": "string"}, c={"type": "boolean"}),
    "required last": obj(["c"], a={"type": "integer"}, b={"type": "string"}, c={"type": "boolean"}),
    "required unknown": {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["b", "a"]},
    "map": {"type": "object", "additionalProperties": {"type": "integer"}},
    "map of one": {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 2},
    "own and others": {**obj(["a"], a={"type": "integer"}, ab={"type": "boolean"}, **{"": {"type": "null"}, "ä": {"type": "null"}}), "additionalProperties": {"type": "string"}},
    "others of any kind": {**obj(["a"], a={"type": "integer"}), "additionalProperties": True},
    "at least two": {**obj(a={"type": "null"}, b={"type": "null"}, c={"type": "null"}), "minProperties": 2},
    "two of three": {**obj(["c"], a={"type": "null"}, b={"type": "null"}, c={"type": "null"}), "minProperties": 2, "maxProperties": 2},
    "strange names": obj(["\"q\"", "back\\slash", "new\nline", "größe", "🙂", " ", "a.b", "$x"],
                         **{"\"q\"": {"type": "null"}, "back\\slash": {"type": "null"}, "new\nline": {"type": "null"}, "größe": {"type": "null"},
                            "🙂": {"type": "null"}, " ": {"type": "null"}, "a.b": {"type": "null"}, "$x": {"type": "null"}}),
    "names in order": obj(list("zyxabc"), **{k: {"type": "null"} for k in "zyxabc"}),
    "200 optional": obj(**{f"property_{i}": {"type": "boolean"} for i in range(200)}),
    "false property": obj(a=False, b={"type": "null"}),
    "anyOf": {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 3}, {"type": "null"}]},
    "anyOf objects": {"anyOf": [obj(["a"], a={"type": "integer"}), obj(["b"], b={"type": "string"})]},
    "anyOf same start": {"anyOf": [obj(["k", "x"], k={"const": "one"}, x={"type": "integer"}), obj(["k", "y"], k={"const": "other"}, y={"type": "integer"})]},
    "anyOf beside": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "anyOf of anyOf": {"anyOf": [{"anyOf": [{"type": "null"}, {"type": "boolean"}]}, {"$ref": "#/$defs/x"}], "$defs": {"x": {"anyOf": [{"const": "x"}, {"type": "null"}]}}},
    "oneOf types": {"oneOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]},
    "oneOf tags": {"oneOf": [obj(t={"const": "a"}, v={"type": "integer"}), obj(t={"enum": ["b", "c"]}, v={"type": "string"})]},
    "oneOf consts": {"oneOf": [{"const": "a"}, {"const": "b"}, {"enum": [1, 2]}]},
    "allOf one": {"allOf": [{"$ref": "#/$defs/a"}], "description": "pydantic 1", "$defs": {"a": {"type": "integer", "minimum": 0}}},
    "allOf two": {"allOf": [obj(["a"], a={"type": "integer"}), obj(["b"], b={"type": "string"})]},
    "allOf bounds": {"allOf": [{"type": "integer", "minimum": 3}, {"type": "number", "maximum": 9}, {"minimum": 5}]},
    "allOf same property": {"allOf": [obj(["a"], a={"type": "integer", "minimum": 0}), obj(a={"maximum": 5})]},
    "ref beside": {"$ref": "#/$defs/s", "maxLength": 3, "$defs": {"s": {"type": "string"}}},
    "ref with escapes": {"$ref": "#/$defs/a~1b%20~0", "$defs": {"a/b ~": {"const": 1}}},
    "ref into properties": obj(["a", "b"], a={"type": "integer"}, b={"$ref": "#/properties/a"}),
    "tree": {"$ref": "#/$defs/t", "$defs": {"t": {"type": "object", "properties": {"l": {"anyOf": [{"$ref": "#/$defs/t"}, {"type": "null"}]}, "r": {"anyOf": [{"$ref": "#/$defs/t"}, {"type": "null"}]}}, "required": ["l", "r"]}}},
    "json": {"$ref": "#/$defs/v", "$defs": {"v": {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "null"}, {"type": "array", "items": {"$ref": "#/$defs/v"}}, {"type": "object", "additionalProperties": {"$ref": "#/$defs/v"}}]}}},
    "no type": {"properties": {"a": {"minimum": 1, "maximum": 5}, "b": {"items": {"maxLength": 2}}}, "required": ["a", "b"]},
    "geojson": obj(["type", "coordinates"], type={"const": "Point"}, coordinates={"type": "array", "minItems": 2, "maxItems": 3, "items": {"type": "number", "minimum": -180, "maximum": 180}}),
    "invoice": obj(["id", "lines", "total"], id={"type": "string", "maxLength": 12}, total={"type": "number", "minimum": 0},
                   lines={"type": "array", "minItems": 1, "items": obj(["sku", "n"], sku={"type": "string"}, n={"type": "integer", "minimum": 1}, price={"type": ["number", "null"]})}),
    **{f"pattern {p}": {"type": "string", "pattern": p} for p in [
        "^[a-z]+$", "^abc", "^(?:a|bc|d*)$", "^[A-Z]{2}\\d{3,5}$", "^\\+?[1-9]\\d{1,14}$", "^[^,;]{3}$", "^.{2,4}$", "^$", "^a?b??c*?$", "^(ab){2}(c|d){1,2}e{0,1}$",
        "^[äöü]+$", "^[\u4e00-\u9fff]{2}$", "^\\S+$", "\\S", "^\\s\\w\\s$", "^\\w+@\\w+\\.com$", "^(a|b|ab)*c$", "^[\\w.-]+$", "^\\{\\}\\[\\]\\(\\)$", "^\"quoted\"$", "^back\\\\slash$",
        "^line\\nend\\t$", "^[\\x20-\\x7E]+$", "^\\u00e9+$", "^#([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$", "^(\\d{4})-(\\d{2})$", "a|b", "^a|b$", "(^a$)|(^b+$)", "^(a$|b)c?$",
        "^v?(0|[1-9]\\d*)\\.(0|[1-9]\\d*)$", "^[^\\s@]+@[^\\s@]+$", "^((25[0-5]|2[0-4]\\d|1?\\d?\\d)\\.){3}(25[0-5]|2[0-4]\\d|1?\\d?\\d)$", "^(a+)+$", "^([a-z]+,)*[a-z]+$", "^[\U0001f600-\U0001f64f]{1,3}$", "", ".*", "^.*$"]},
    "pattern and length": {"type": "string", "pattern": "^[a-z]+( [a-z]+)*$", "minLength": 5, "maxLength": 12},
    "pattern at least": {"type": "string", "pattern": "^(ab|cde)*$", "minLength": 6}, "pattern of a date": obj(["d"], d={"type": "string", "pattern": "^\\d{4}-\\d{2}-\\d{2}$"}),
    "pattern of openai": obj(["username"], username={"type": "string", "pattern": "^@[a-zA-Z0-9_]+$"}),
    **{f"format {f}": {"type": "string", "format": f} for f in ["date", "date-time", "time", "uuid", "ipv4", "email", "duration", "hostname", "ipv6"]},
    "Dated": Dated.model_json_schema(), "short email": {"type": "string", "format": "email", "maxLength": 12},
    **{f"harmless {k}": {k: v} for k, v in [("if", {}), ("then", {}), ("else", True), ("patternProperties", {}), ("dependentRequired", {}), ("dependentSchemas", {}), ("dependencies", {}),
        ("unevaluatedProperties", False), ("unevaluatedItems", False), ("$defs", {}), ("propertyNames", {}), ("required", []), ("uniqueItems", False), ("additionalProperties", True)]},
    "harmless within": obj(["a"], a={"if": {}}, b={"type": "string", "dependentSchemas": {}}, c={"patternProperties": {}, "minLength": 1}),
    "unique booleans": {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True}, "unique digits": {"type": "array", "items": {"type": "integer", "minimum": -3, "maximum": 9}, "uniqueItems": True, "minItems": 3},
    "unique const": {"type": "array", "items": {"const": "x", "title": "t"}, "uniqueItems": True}, "pattern of all names": {"type": "object", "patternProperties": {"^.*$": {"type": "integer"}}, "additionalProperties": False, "minProperties": 1},
    "names of a pattern": {"type": "object", "propertyNames": {"pattern": "^[a-z]{2,3}(_[é🙂]+)?$"}, "additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 3},
    "names by pattern": {"type": "object", "patternProperties": {"^x-": {"type": "boolean"}}, "additionalProperties": False}, "names by pattern, one required": {"type": "object", "patternProperties": {"^x-": {"type": "boolean"}}, "required": ["x-1"]},
    "names of a length": {"type": "object", "propertyNames": {"minLength": 1, "maxLength": 4}, "additionalProperties": {"type": "null"}}, "names of a format": {"type": "object", "propertyNames": {"format": "date"}, "minProperties": 1},
    "names of two patterns": {"type": "object", "propertyNames": {"maxLength": 3}, "patternProperties": {"^a": {}}},
    "two patterns": {"allOf": [{"type": "string", "pattern": "^a"}, {"pattern": "b$"}, {"pattern": "c", "maxLength": 9}]}, "pattern and format": {"type": "string", "format": "date", "pattern": "^20"},
    "pattern and another format": {"type": "string", "format": "date", "pattern": "^[0-9]+/[0-9]+$"}, "patterns and enum": {"enum": ["ab", "a", "b"], "allOf": [{"pattern": "^a"}, {"pattern": "b$"}]},
    "format uri": {"type": "string", "format": "uri"}, "long uri": {"type": "string", "format": "uri", "minLength": 1, "maxLength": 2083},
    "oneOf by what is required": {**obj(["x"], x={"type": "null"}, a={"type": "null"}, b={"type": "null"}, c={"type": "null"}), "oneOf": [{"required": ["a"]}, {"required": ["b"]}, {"required": ["c"]}]},
    "oneOf of open objects": {"oneOf": [{**obj(["a"], a={"type": "null"}), "additionalProperties": True}, {**obj(["b"], b={"type": "null"}), "additionalProperties": {"type": "integer"}}]},
    "names are strings": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "number"}},
    "draft 4 bounds": {"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer", "minimum": 3, "exclusiveMinimum": True, "maximum": 6, "exclusiveMaximum": False},
    "enum and length": {"enum": ["a", "ab", "größ", "größe", "abcdef", 7], "minLength": 2, "maxLength": 4, "minItems": 9},
    "enum and pattern": {"type": "string", "enum": ["ab", "b", "é🙂b", "x"], "pattern": "b$"}, "const and length": {"const": "🙂🙂", "minLength": 2, "maxLength": 2},
    "anchor": {"properties": {"a": {"$ref": "#here"}}, "required": ["a"], "$defs": {"x": {"$anchor": "here", "type": "integer"}}},
    "own id": {"$id": "https://example.org/tree", "type": "object", "properties": {"v": {"$ref": "https://example.org/tree#/$defs/n"}, "more": {"type": "array", "items": {"$ref": "https://example.org/tree"}}}, "required": ["v"], "$defs": {"n": {"type": "integer"}}},
    "oneOf null and enum": {"oneOf": [{"type": "null"}, {"enum": ["x", "y"]}, {"const": 5}, {"enum": [True]}]},
    "zod email": {"type": "string", "format": "email", "pattern": r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"},
    "zod duration": {"type": "string", "format": "duration", "pattern": r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$"},
    "nested 20": (lambda f: f(f, 20))(lambda f, n: {"type": "integer"} if not n else obj(["a"], a=f(f, n - 1))),
}

REFUSED = [  # schema, place, word in the message
    ({"type": "objekt"}, "type", "type"), ({"type": []}, "type", "type"), ({"type": 3}, "type", "type"), (False, "", "false"), (5, "", "schema"),
    ({"not": {"type": "null"}}, "not", "not: 'not' is not supported"), (obj(a={"not": {}}), "properties.a.not", "properties.a.not: 'not' is not supported"),
    ({**obj(a={"type": "null"}), "$ref": "#"}, "", "leads to itself"), ({"$ref": "#"}, "$ref", "leads to itself"),
    ({"if": {"type": "null"}, "then": {"const": None}}, "if", "if"), ({"type": "object", "patternProperties": {"^a": {}, "^b": {}}}, "patternProperties", "patternProperties"),
    ({**obj(ab={}), "propertyNames": {"maxLength": 2}}, "propertyNames", "propertyNames"), ({"type": "object", "propertyNames": {"maxLength": 2}, "required": ["a"]}, "propertyNames", "propertyNames"),
    ({"type": "object", "propertyNames": {"pattern": "^a"}, "required": ["b"]}, "required", "b"), ({"type": "object", "propertyNames": {"pattern": "(?=a)"}}, "propertyNames.pattern", "looks"),
    ({"type": "string", "pattern": ["^a"]}, "pattern", "string"), ({"allOf": [{"type": "string", "pattern": "^a"}, {"pattern": "^b"}]}, "pattern", "matches"),
    ({"oneOf": [obj(["a"], a={}), obj(["a", "b"], a={}, b={})]}, "oneOf", "match"), ({"type": "object", "propertyNames": {"enum": ["a"]}, "required": ["b"]}, "required", "b"),
    ({"type": "array", "uniqueItems": True, "items": {"enum": list(range(65))}}, "uniqueItems", "64"), ({"type": "array", "uniqueItems": True, "items": {"enum": [1, 1.0]}, "minItems": 2}, "minItems", "different"),
    ({"type": "array", "uniqueItems": True, "items": {"type": "string"}}, "uniqueItems", "enum"), ({"type": "array", "uniqueItems": True}, "uniqueItems", "uniqueItems"),
    ({"type": "array", "uniqueItems": True, "items": {"type": "integer", "minimum": 0, "maximum": 64}}, "uniqueItems", "64"), ({"type": "array", "uniqueItems": True, "items": {"type": "boolean", "not": {}}}, "uniqueItems", "enum"),
    ({**obj(a={}), "patternProperties": {".*": {}}}, "patternProperties", "not supported"), ({"patternProperties": {".*": {}, "a": {}}}, "patternProperties", "not supported"),
    ({"type": "array", "contains": {"const": 1}}, "contains", "contains"), ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired", "dependentRequired"),
    ({"$dynamicRef": "#x"}, "$dynamicRef", "$dynamicRef"), ({"type": "array", "items": {"type": "object", "dependentSchemas": {"a": {"type": "null"}}}}, "items.dependentSchemas", "dependentSchemas"),
    ({"$ref": "https://example.org/x.json"}, "$ref", "within"), ({"$ref": "#/$defs/none"}, "$ref", "nothing"), ({"$ref": "#anchor"}, "$ref", "anchor"), ({"$ref": "https://example.org/y#/a", "$id": "https://example.org/x"}, "$ref", "within"), ({"$ref": 5}, "$ref", "string"),
    ({"$ref": "#"}, "$ref", "itself"), ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "$ref", "itself"),
    (obj(["a"], a={"$ref": "#"}), "", "ends"), ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "", "ends"), ({"anyOf": [{"$ref": "#"}]}, "", "ends"),
    ({"allOf": [{"$ref": "#"}]}, "", "itself"), ((lambda f: f(f, 97))(lambda f, n: True if not n else {"type": "array", "minItems": 1, "items": f(f, n - 1)}), "", "levels"),
    ({"type": "integer", "minimum": 5, "maximum": 4}, "", "bounds"), ({"type": "integer", "minimum": 11, "maximum": 19, "multipleOf": 10}, "", "bounds"), ({"type": "integer", "minimum": 1e30}, "", "bounds"),
    ({"type": "number", "exclusiveMinimum": 1, "exclusiveMaximum": 1}, "", "bounds"), ({"type": "integer", "minimum": "0"}, "minimum", "number"), ({"type": "integer", "exclusiveMinimum": True}, "exclusiveMinimum", "number"),
    ({"type": "number", "multipleOf": 0}, "multipleOf", "above 0"), ({"type": "integer", "multipleOf": 0.3}, "multipleOf", "digits"), ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength", "maxLength"),
    ({"type": "string", "minLength": -1}, "minLength", "whole"), ({"type": "string", "maxLength": 1.5}, "maxLength", "whole"), ({"type": "array", "minItems": 1000000000}, "minItems", "more than"),
    ({"type": "array", "prefixItems": [{}], "items": False, "minItems": 2}, "minItems", "more"), ({"type": "array", "items": False, "minItems": 1}, "minItems", "more"),
    ({"enum": []}, "enum", "allowed"), ({"enum": "x"}, "enum", "array"), ({"type": "string", "enum": [1]}, "enum", "allowed"), ({"enum": ["abcd"], "maxLength": 3}, "enum", "allowed"), ({"enum": [1], "maximum": 3}, "maximum", "beside"), ({"enum": ["a"], "pattern": "("}, "pattern", "("), ({"const": "a", "minLength": "1"}, "minLength", "whole"),
    ({"const": 1, "enum": [2]}, "const", "allowed"), ({**obj(["b"], a={}), "additionalProperties": False}, "required", "b"), ({"type": "object", "required": "a"}, "required", "array"), ({"type": "object", "properties": []}, "properties", "object"),
    ({**obj(a={}), "minProperties": 2}, "minProperties", "more"), ({"type": "object", "minProperties": 2}, "minProperties", "above 1"), ({**obj(["a", "b"], a={}, b={}), "maxProperties": 1}, "maxProperties", "required"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf", "match"), ({"oneOf": [obj(a={"type": "integer"}), obj(b={"type": "integer"})]}, "oneOf", "match"),
    ({"anyOf": []}, "anyOf", "empty"), ({"anyOf": {}}, "anyOf", "array"), ({"anyOf": [{"type": "null"}], "oneOf": [{"type": "string"}, {"type": "integer"}]}, "anyOf[0].type", "both"),
    ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "type", "both"), ({"allOf": [{**obj(a={}), "additionalProperties": False}, obj(b={})]}, "additionalProperties", "joined"),
    ({"type": "string", "nullable": True}, "nullable", "null"), ((lambda f: f(f, 30))(lambda f, n: {"not": {}} if not n else {"type": "array", "items": f(f, n - 1)}), "..." + ".items" * 16 + ".not", "not"), (obj(a=5), "properties.a", "schema"), ({"anyOf": [{"type": "null"}, {"type": "x"}]}, "anyOf[1].type", "type"),
    *[({"type": "string", "pattern": p}, "pattern", word) for p, word in [
        ("(?=a)b", "looks"), ("(?!a)b", "looks"), ("(?<=a)b", "looks"), ("(?i)a", "flags"), (r"(a)\1", "refers back"), (r"\bword\b", "word boundary"), (r"\p{L}", "property"), ("(a", "("), ("a)", ")"), ("[a", "["), ("*a", "nothing"),
        ("a**", "repeated already"), ("[z-a]", "range"), ("a{3,2}", "repeats"), ("a{100000}", "repeats"), ("x{,2}", "text to some"), ("(((a{900}){900}){900})", "large"), ("((((){1000}){1000}){1000}){1000}", "complex"),
        ("(a|b)*a(a|b){40}", "complex"), ("^a$b", "matches"), ("^\x01$", "matches"), ("a" * 15000, "large"), ("(" * 60 + "a" + ")" * 60, "groups"), ("^" + "|".join("ab" for _ in range(8000)) + "$", "large")]],
    ({"type": "string", "pattern": "^ab$", "minLength": 3}, "pattern", "matches"), ({"type": "string", "pattern": "^(abcdefghij|klmnopqrst)*$", "maxLength": 5000}, "pattern", "length"), ({"type": "string", "pattern": 5}, "pattern", "string"),
    ({"type": "array", "items": [{"type": "null"}, {"not": {"type": "null"}}]}, "items[1].not", "not"),
]


def bomb(n):
    """2^n ways to say null."""
    defs = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}", "title": "again"}]} for i in range(n)}
    return {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{n}": {"type": "null"}}}


def all_of_bomb(n):
    defs = {f"d{i}": {"allOf": [obj(a={"$ref": f"#/$defs/d{i + 1}"}), obj(a={"$ref": f"#/$defs/d{i + 1}", "minProperties": 1})]} for i in range(n)}
    return {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{n}": {"type": "null"}}}


HOSTILE = {  # answered quickly, with an answer or an error
    "2^60 alternatives": bomb(60), "alternatives in a ring": {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}, {"type": "null"}]}, "b": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}}},
    "allOf doubling": all_of_bomb(40), "many enum values": {"enum": [f"value {i}" for i in range(20000)]},
    "1000 alternatives": {"anyOf": [{"type": "string", "maxLength": i + 1} for i in range(1000)]},
    "1001 alternatives": {"anyOf": [{"type": "string", "maxLength": i + 1} for i in range(1001)]},
    "1000 properties": obj(**{f"p{i}": {"type": "integer"} for i in range(1000)}), "5000 properties": obj(**{f"p{i}": {"type": "integer"} for i in range(5000)}),
    "arrays of ambiguous arrays": {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/a"}}, {"type": "array", "items": {"$ref": "#/$defs/a"}, "maxItems": 9}, {"type": "null"}]}}},
    "chain of 5000": {"$ref": "#/$defs/d0", "$defs": {**{f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(5000)}, "d5000": {"type": "null"}}},
    "large text": {"const": "x" * 500000}, "long names": obj(**{("n" * 1000) + str(i): True for i in range(500)}),
    "patterns that explode": obj(**{f"p{i}": {"type": "string", "pattern": f"(a|b)*a(a|b){{{12 + i % 3}}}", "maxLength": 50 + i} for i in range(60)}),
    "a large pattern": {"type": "string", "pattern": "^(" + "|".join(f"word{i}" for i in range(400)) + ")+$", "maxLength": 30}, "a wide pattern": {"type": "string", "pattern": "^[^a]{900}$"},
    "arrays of 900 kinds": {"type": "array", "minItems": 500, "items": {"anyOf": [{"type": "array", "minItems": 3, "items": {"type": "integer", "maximum": 1000000 + i}} for i in range(900)]}},
    "huge counts": {"type": "array", "maxItems": 10 ** 15, "items": {"type": "string", "maxLength": 10 ** 15}},
}
