-- Tessera in twelve statements, on a real cube: potential temperature over time, level, latitude and longitude.
-- NumPy's values for every answer are in sql/quickstart.expected.md.

-- The whole cube in a few figures.
SELECT mean(air_potential_temperature) AS mean, min(air_potential_temperature) AS low, max(air_potential_temperature) AS high, count(air_potential_temperature) AS cells
FROM 'tests/data/colpex.v3.zarr';

-- Means by level: a reduction over the other three dimensions.
SELECT mean(air_potential_temperature, axis => ['time', 'grid_latitude', 'grid_longitude']) AS by_level
FROM 'tests/data/colpex.v3.zarr';

-- A climatology by time: how the area's mean profile cools, kept for the session.
CREATE OR REPLACE TEMP TENSOR profile AS
SELECT mean(air_potential_temperature, axis => ['grid_latitude', 'grid_longitude']) AS theta
FROM 'tests/data/colpex.v3.zarr';

-- Its mean for each time step.
SELECT mean(theta, axis => 'model_level_number') AS by_time FROM profile;

-- An anomaly: each level's departure from its mean over time.
SELECT theta - mean(theta, axis => 'time') AS anomaly FROM profile;

-- A matrix product: every profile weighted by the levels' height and sigma.
SELECT theta @ transpose(stack([level_height, sigma], dim => 'weight')) AS weighted
FROM (SELECT mean(air_potential_temperature, axis => ['grid_latitude', 'grid_longitude']) AS theta, level_height, sigma FROM 'tests/data/colpex.v3.zarr');

-- A masked mean: only the cells warmer than 284 K, by level.
SELECT mean(where(air_potential_temperature > 284.0, air_potential_temperature, NULL), axis => ['time', 'grid_latitude', 'grid_longitude']) AS warm
FROM 'tests/data/colpex.v3.zarr';

-- A corner of the lowest level at the first time step, by position, and negative steps.
SELECT air_potential_temperature[0, 0, :3, :4] AS corner, air_potential_temperature[-1, 0, ::-41, ::41] AS sparse
FROM 'tests/data/colpex.v3.zarr';

-- One level by its label, and where in time it is warmest.
SELECT argmax(mean(air_potential_temperature[model_level_number => 2], axis => ['grid_latitude', 'grid_longitude'])) AS warmest
FROM 'tests/data/colpex.v3.zarr';

-- The cell surface: plain SQL over the same cells, which stays dense.
SELECT model_level_number, avg(air_potential_temperature) AS mean, max(air_potential_temperature) - min(air_potential_temperature) AS spread
FROM 'tests/data/colpex.v3.zarr'
GROUP BY model_level_number
HAVING avg(air_potential_temperature) > 284.3
ORDER BY model_level_number DESC;

-- A slice of rows, warmest first.
SELECT grid_latitude, grid_longitude, air_potential_temperature AS theta
FROM 'tests/data/colpex.v3.zarr'
WHERE model_level_number = 1 AND time = '2009-09-09T22:10:00'
ORDER BY theta DESC, grid_latitude, grid_longitude LIMIT 3;

-- How a statement runs.
EXPLAIN SELECT air_potential_temperature - mean(air_potential_temperature, axis => 'time') AS anomaly
FROM 'tests/data/colpex.v3.zarr';
