//! What binds tighter than what, and other pins of single expressions.

use crate::sexpr::expr_of;

/// Checks `text => rendering` pairs.
fn pins(pairs: &[(&str, &str)]) {
    for (text, expected) in pairs {
        assert_eq!(expr_of(text), *expected, "in {text}");
    }
}

#[test]
fn power_is_above_products_and_below_casts() {
    pins(&[
        ("a+b^2", "(+ a (power b 2))"),
        ("a*b^2", "(* a (power b 2))"),
        ("a^2*b", "(* (power a 2) b)"),
        ("-x^2", "(neg (power x 2))"),
        ("2^3^2", "(power 2 (power 3 2))"),
        ("2^-1*3", "(* (power 2 (neg 1)) 3)"),
        ("(-x)^2", "(power (neg x) 2)"),
        ("a^b::int", "(power a (cast b INT))"),
        ("x[0]^y[1]", "(power (at x 0) (at y 1))"),
        ("NOT a^2 = 4", "(NOT (= (power a 2) 4))"),
    ]);
}

#[test]
fn matmul_is_a_product() {
    pins(&[
        ("a@b*c", "(* (matmul a b) c)"),
        ("a*b@c", "(matmul (* a b) c)"),
        ("a + b@c", "(+ a (matmul b c))"),
        ("a@b@c", "(matmul (matmul a b) c)"),
        ("a@b^2", "(matmul a (power b 2))"),
        ("-a@b", "(matmul (neg a) b)"),
        ("a@-b", "(matmul a (neg b))"),
        ("a @ b[0] > c", "(> (matmul a (at b 0)) c)"),
        ("x.T@x", "(matmul x.T x)"),
        ("a@'x'", "(matmul a 'x')"),
    ]);
}

#[test]
fn distinct_from_binds_as_a_comparison() {
    pins(&[
        ("a IS DISTINCT FROM b AND c", "(AND (distinct a b) c)"),
        ("a IS NOT DISTINCT FROM b + 1 OR c", "(OR (same a (+ b 1)) c)"),
        ("NOT a IS DISTINCT FROM b", "(NOT (distinct a b))"),
    ]);
}

#[test]
fn prefixes_bind_as_concatenations() {
    pins(&[
        ("a || b ^@ c", "(^@ (|| a b) c)"),
        ("NOT a ^@ b AND c", "(AND (NOT (^@ a b)) c)"),
        ("a ^@ b::text = c", "(= (^@ a (cast b TEXT)) c)"),
    ]);
}

#[test]
fn integer_division_and_remainder_are_products() {
    pins(&[
        ("a//b", "(// a b)"),
        ("a + b//c*d", "(+ a (* (// b c) d))"),
        ("a//-b", "(// a (neg b))"),
        ("a%b", "(% a b)"),
        ("a %b + 1", "(+ (% a b) 1)"),
    ]);
}

#[test]
fn subscripts() {
    pins(&[
        ("a[0]", "(at a 0)"),
        ("a[0, 1]", "(at a 0 1)"),
        ("a[0][1]", "(at (at a 0) 1)"),
        ("a[:]", "(at a _:_:_)"),
        ("a[::]", "(at a _:_:_)"),
        ("a[1:]", "(at a 1:_:_)"),
        ("a[:n]", "(at a _:n:_)"),
        ("a[::2]", "(at a _:_:2)"),
        ("a[::-1]", "(at a _:_:(neg 1))"),
        ("a[1:2:3]", "(at a 1:2:3)"),
        ("a[lo::n]", "(at a lo:_:n)"),
        ("a[lo: :n]", "(at a lo:_:n)"),
        ("a[lo::int]", "(at a (cast lo INT))"),
        ("a[lo::int:hi::int]", "(at a (cast lo INT):(cast hi INT):_)"),
        ("a[x+1:-y]", "(at a (+ x 1):(neg y):_)"),
        ("a[...]", "(at a ...)"),
        ("a[..., NEWAXIS, 0]", "(at a ... newaxis 0)"),
        ("a[newaxis]", "(at a newaxis)"),
        ("a[newaxis + 1]", "(at a (+ newaxis 1))"),
        ("a[lat => 1]", "(at a lat=1)"),
        (
            "a[\"lat\" => 1:2, :, time => '2020':'2021':2]",
            "(at a \"lat\"=1:2:_ _:_:_ time='2020':'2021':2)",
        ),
        ("a[a > 3]", "(at a (> a 3))"),
        ("a[[1, 2], b[0]]", "(at a [1 2] (at b 0))"),
        ("(a + b)[0]", "(at (+ a b) 0)"),
        ("f(x)[0]", "(at (f x) 0)"),
        ("-x[0]", "(neg (at x 0))"),
        ("t.v[0]", "(at t.v 0)"),
        ("a::float[0]", "(at (cast a FLOAT) 0)"),
        ("(a::float)[0]", "(at (cast a FLOAT) 0)"),
        ("a[0]::float", "(cast (at a 0) FLOAT)"),
        ("a::f32", "(cast a f32)"),
        ("time[0], date[1]", "(at time 0) (at date 1)"),
    ]);
}

#[test]
fn fields() {
    pins(&[
        ("x.T", "x.T"),
        ("x[0].T", "(field (at x 0) T)"),
        ("x[0].T[1].T", "(field (at (field (at x 0) T) 1) T)"),
        ("f(x).u", "(field (f x) u)"),
        ("svd(a, k => 20).u[:, 0:3].T", "(field (at (field (svd a k=20) u) _:_:_ 0:3:_) T)"),
        ("(a @ b).T", "(field (matmul a b) T)"),
        ("f(x).order", "(field (f x) order)"),
    ]);
}

#[test]
fn literals() {
    pins(&[
        ("[[1,2],[3,4]]", "[[1 2] [3 4]]"),
        ("[[1,2],[3,4]][0, :]", "(at [[1 2] [3 4]] 0 _:_:_)"),
        ("ARRAY[1, 2][0]", "(at [1 2] 0)"),
        ("[]", "[]"),
        ("[lat], [lon] AS l, [1], ['x'], [a.b]", "(dim lat) (dim lon) as l [1] ['x'] [a.b]"),
        ("1e-3, 1.5e+10, .5, 1.", "1e-3 1.5e+10 .5 1."),
        ("1_000", "1_000"),
        ("DATE '2020-01-01'", "«DATE '2020-01-01'»"),
        ("INTERVAL '7' DAY, INTERVAL '1 hour'", "«INTERVAL '7' DAY» «INTERVAL '1 hour'»"),
        ("a /* b [ */ + -- c (\n d", "(+ a d)"),
        ("E'a\\n', 'it''s'", "E'a\\n' 'it''s'"),
    ]);
}

#[test]
fn lists() {
    pins(&[
        ("[x for x in l]", "(list_transform l (fn x x))"),
        (
            "[x + 1 for x in l if x > 2]",
            "(list_transform (list_filter l (fn x (> x 2))) (fn x (+ x 1)))",
        ),
        (
            "[[y for y in x] for x in [[1], []]]",
            "(list_transform [[1] []] (fn x (list_transform x (fn y y))))",
        ),
        ("x::text[], a + b::int[][1]", "(cast x TEXT[]) (+ a (at (cast b INT[]) 1))"),
        ("CAST(x AS int[][])", "(cast x INT[][])"),
    ]);
}

#[test]
fn calls() {
    pins(&[
        ("f()", "(f)"),
        ("f(a, axis => 0, by => month(time))", "(f a axis=0 by=(month time))"),
        ("where(c, x, NULL)", "(where c x NULL)"),
        ("a, where(c, x, NULL)", "a (where c x NULL)"),
        ("floor(x), ceil(x), round(x)", "(floor x) (ceil x) (round x)"),
        ("left(x), range(3), map(x), interval(x)", "(left x) (range 3) (map x) (interval x)"),
        ("count(*), sum(DISTINCT x)", "(count *) (sum x)"),
        ("apply(a, x -> x + 1)", "(apply a (fn x (+ x 1)))"),
        ("struct_pack(a := 1)", "(struct_pack a=1)"),
        ("tensor(SELECT v FROM y)", "(tensor (select\n  (item v)\n  (from y)))"),
        (
            "CASE WHEN a THEN b[0:1] ELSE c @ d END",
            "«CASE WHEN a THEN [__index](b, [__slice](0, 1, NULL)) ELSE matmul(c, d) END»",
        ),
        (
            "position('a' IN b), substring(a FROM 2 FOR 3)",
            "«POSITION('a' IN b)» «SUBSTRING(a FROM 2 FOR 3)»",
        ),
        ("NOT a AND b, a IN (1, 2)", "(AND (NOT a) b) «a IN (1, 2)»"),
        ("__index(a, 0)", "(__index a 0)"),
        ("{'a': 1, 'b': x[0:1]}", "«{'a': 1, 'b': [__index](x, [__slice](0, 1, NULL))}»"),
    ]);
}

#[test]
fn all_and_any_are_functions_beside_operators() {
    pins(&[
        ("a = all(b)", "(= a (all b))"),
        ("a + any(b) * 2", "(+ a (* (any b) 2))"),
        ("a < any(b) + c AND all(d) OR any(e)", "(OR (AND (< a (+ (any b) c)) (all d)) (any e))"),
        ("where(all(a), b, c)", "(where (all a) b c)"),
        ("f(all(a), any(b))", "(f (all a) (any b))"),
        ("a AND all(b)[0]", "(AND a (at (all b) 0))"),
    ]);
}
